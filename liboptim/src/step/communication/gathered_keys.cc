#include "step/communication/collectives.h"

#include <bit>
#include <string>
#include <variant>

#include <ckpt/error.h>
#include <nlohmann/json.hpp>

namespace optim {
namespace {

using nlohmann::json;

// Numbers travel as their bits: 0.1 must be the same key everywhere.
json to_json(const OverrideValue& value) {
  json content;
  if (const auto* real = std::get_if<double>(&value)) {
    content = std::bit_cast<int64_t>(*real);
  } else {
    std::visit([&](const auto& v) { content = v; }, value);
  }
  return {value.index(), std::move(content)};
}

OverrideValue value_of(const json& text) {
  const json& content = text.at(1);
  switch (text.at(0).get<size_t>()) {
    case 0: return content.get<bool>();
    case 1: return content.get<int64_t>();
    case 2: return std::bit_cast<double>(content.get<int64_t>());
    default: return content.get<std::string>();
  }
}

std::string text_of(const std::vector<GroupKey>& keys) {
  json all = json::array();
  for (const GroupKey& key : keys) {
    json overrides;  // null: no key matched
    if (key.overrides) overrides = json::object();
    for (const auto& [field, value] : key.overrides.value_or(ParamGroupOverride())) {
      overrides[field] = to_json(value);
    }
    all.push_back({{"expert", key.is_expert_parallel}, {"overrides", std::move(overrides)}});
  }
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<GroupKey> keys_of(const std::string& text) {
  std::vector<GroupKey> keys;
  for (const json& entry : json::parse(text)) {
    GroupKey key = {.is_expert_parallel = entry.at("expert").get<bool>()};
    const json& overrides = entry.at("overrides");
    if (!overrides.is_null()) key.overrides.emplace();
    for (const auto& [field, value] : overrides.items()) {
      key.overrides->emplace(field, value_of(value));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace

std::vector<GroupKey> gather_group_keys(const ProcessGroupPtr& world,
                                        const std::vector<GroupKey>& mine) {
  std::vector<GroupKey> all;
  for (const std::string& text : all_gather(world, text_of(mine))) {
    try {
      for (GroupKey& key : keys_of(text)) all.push_back(std::move(key));
    } catch (const json::exception&) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = "world"},
                        "a rank sent group keys unknown to this version");
    }
  }
  return all;
}

}  // namespace optim
