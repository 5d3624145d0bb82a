#include "args/common_state.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <utility>

#include <ckpt/archive_builder.h>
#include <ckpt/error.h>

namespace optim {
namespace {

using ckpt::Document;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;

constexpr const char* kCommonFile = "common.pt";

bool is_of_common_state(const ckpt::ObjectEntry& object) {
  constexpr std::array<std::string_view, 3> kOthers = {"model.", "optimizer.", "rng_state."};
  return std::ranges::none_of(
      kOthers, [&](std::string_view prefix) { return object.key.starts_with(prefix); });
}

// "opt_param_scheduler.max_lr" is a value of a dictionary.
CommonState common_of_state_dicts(const ckpt::Checkpoint& checkpoint) {
  ckpt::ArchiveBuilder builder;
  ckpt::ValueTree& tree = builder.tree();
  const ckpt::NodeId root = tree.dict();
  std::map<std::string, ckpt::NodeId> dicts;
  std::list<Document> read;  // storages are told apart by document
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    if (!is_of_common_state(object)) continue;
    const Document& one = read.emplace_back(checkpoint.read_object(object));
    const ckpt::NodeId value = builder.carry(one.tree.root(), one);
    const size_t dot = object.key.find('.');
    if (dot == object.key.npos) {
      tree.put(root, object.key, value);
      continue;
    }
    const auto [dict, is_new] = dicts.try_emplace(object.key.substr(0, dot));
    if (is_new) tree.put(root, dict->first, dict->second = tree.dict());
    tree.put(dict->second, std::string_view(object.key).substr(dot + 1), value);
  }
  return {".metadata", "", std::make_shared<Document>(builder.finish_document(root))};
}

std::string text_at(const std::optional<ckpt::Value>& dict, std::string_view key) {
  const auto value = dict && dict->is(Kind::Dict) ? dict->find(key) : std::nullopt;
  return value && value->is(Kind::Str) ? std::string(value->text()) : std::string();
}

}  // namespace

void CommonState::corrupt(const std::string& pointer, std::string problem) const {
  throw Error(ErrorCode::Corrupt, {file, std::nullopt, key + pointer}, std::move(problem));
}

bool holds_state_dicts(const ckpt::Catalog& catalog) {
  constexpr std::array<std::string_view, 3> kOfMegatron = {"args", "checkpoint_version",
                                                           "iteration"};
  return catalog.format == ckpt::Format::TorchDist &&
         std::ranges::all_of(kOfMegatron, [&](std::string_view key) {
           return catalog.find_object(key) != nullptr;
         });
}

std::optional<CommonState> read_common_state(const ckpt::Checkpoint& checkpoint) {
  const Document* file = checkpoint.document(kCommonFile);
  const ckpt::ObjectEntry* object = checkpoint.catalog().find_object(kCommonStateKey);
  if (file != nullptr && object != nullptr) {
    throw Error(ErrorCode::Corrupt, {kCommonFile, std::nullopt, std::string(kCommonStateKey)},
                "the common state is stored twice: in this file and in .metadata");
  }
  if (file != nullptr) {
    return CommonState{kCommonFile, "", {std::shared_ptr<const Document>(), file}};
  }
  if (object == nullptr) {
    if (!holds_state_dicts(checkpoint.catalog())) return std::nullopt;
    return common_of_state_dicts(checkpoint);
  }
  auto document = std::make_shared<Document>(checkpoint.read_object(*object));
  const ckpt::Value root = document->tree.root();
  if (!root.is(Kind::List) || root.size() != 1 || !root[0].is(Kind::Dict)) {
    throw Error(ErrorCode::Corrupt, {".metadata", std::nullopt, std::string(kCommonStateKey)},
                "is not a list of one dictionary");
  }
  document->tree.set_root(root[0].id());
  return CommonState{".metadata", std::string(kCommonStateKey), std::move(document)};
}

std::string stated_sharding(const ckpt::Value& common_root) {
  if (!common_root.is(Kind::Dict)) return {};
  std::string content =
      text_at(common_root.find("content_metadata"), "distrib_optim_sharding_type");
  if (!content.empty()) return content;
  auto optimizer = common_root.find("optimizer");  // up to 0.12
  if (!optimizer || !optimizer->is(Kind::Dict)) return {};
  if (const auto first = optimizer->find(int64_t{0})) optimizer = first;
  return text_at(optimizer, "param_state_sharding_type");
}

const Release* release_of(bool has_common_file, const ckpt::Value& common_root) {
  const auto chain =
      common_root.is(Kind::Dict) ? common_root.find("optimizer") : std::optional<ckpt::Value>();
  bool distributes_adam = false;
  for (size_t i = 0; chain && chain->is(Kind::Dict) && i < chain->item_count(); ++i) {
    const ckpt::Value optimizer = chain->item(i).second;
    const bool is_dict = optimizer.is(Kind::Dict);
    if (is_dict && optimizer.find("param_state_sharding_type")) distributes_adam = true;
  }
  const Release* nearest = nullptr;
  for (const Release* const release : releases()) {
    if (release->has_common_file != has_common_file) continue;
    if (release->distributes_adam == distributes_adam) return release;
    if (nearest == nullptr) nearest = release;
  }
  return nearest;
}

}  // namespace optim
