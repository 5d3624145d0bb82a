#include <optim/optimizer_config.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>

#include "config/config_fields.h"
#include "rules/mode_names.h"

namespace optim {
namespace {

using nlohmann::ordered_json;

template <typename Mode>
std::string_view name_of(Mode mode) {
  const auto index = static_cast<size_t>(mode);
  return index < names_of(mode).size() ? names_of(mode)[index] : std::string_view("?");
}

[[noreturn]] void refuse_field(std::string_view field, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = std::string(field)},
                    std::move(problem));
}

// One overload per type of field. `field` is only for messages.
ordered_json written(std::string_view, bool value) { return value; }
ordered_json written(std::string_view, int64_t value) { return value; }
ordered_json written(std::string_view, const std::string& value) { return value; }
ordered_json written(std::string_view, ckpt::DType value) { return ckpt::name(value); }
ordered_json written(std::string_view field, double value) {
  if (!std::isfinite(value)) refuse_field(field, "is not finite, and JSON cannot express it");
  return value;
}
template <typename Mode>
requires std::is_enum_v<Mode> ordered_json written(std::string_view, Mode value) {
  return name(value);
}
template <typename T>
ordered_json written(std::string_view field, const std::optional<T>& value) {
  return value ? written(field, *value) : ordered_json(nullptr);
}

void require_field(bool right, std::string_view field, std::string_view expected) {
  if (!right) refuse_field(field, "the JSON value is not " + std::string(expected));
}

void read(std::string_view field, const ordered_json& json, bool& value) {
  require_field(json.is_boolean(), field, "true or false");
  value = json.get<bool>();
}
void read(std::string_view field, const ordered_json& json, int64_t& value) {
  require_field(json.is_number_integer(), field, "an integer");
  const bool fits = !json.is_number_unsigned() ||
                    json.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  require_field(fits, field, "an integer of 64 bits");
  value = json.get<int64_t>();
}
void read(std::string_view field, const ordered_json& json, double& value) {
  require_field(json.is_number(), field, "a number");
  value = json.get<double>();
}
void read(std::string_view field, const ordered_json& json, std::string& value) {
  require_field(json.is_string(), field, "a string");
  value = json.get<std::string>();
}
void read(std::string_view field, const ordered_json& json, ckpt::DType& value) {
  std::string text;
  read(field, json, text);
  if (text.starts_with("torch.")) text.erase(0, 6);
  const std::optional<ckpt::DType> dtype = ckpt::dtype_named(text);
  require_field(dtype.has_value(), field, "the name of an element type");
  value = *dtype;
}
template <typename Mode>
requires std::is_enum_v<Mode>
void read(std::string_view field, const ordered_json& json, Mode& value) {
  std::string text;
  read(field, json, text);
  const std::optional<Mode> mode = mode_named<Mode>(text);
  require_field(mode.has_value(), field, "one of this field's names");
  value = *mode;
}
template <typename T>
void read(std::string_view field, const ordered_json& json, std::optional<T>& value) {
  if (json.is_null()) {
    value.reset();
  } else {
    read(field, json, value.emplace());
  }
}

ordered_json parse(std::string_view text) {
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    refuse_field({}, "expected a JSON object with the optimizer configuration");
  return json;
}

}  // namespace

std::string_view name(MuonScaleMode mode) { return name_of(mode); }
std::string_view name(MatmulPrecision precision) { return name_of(precision); }
std::string_view name(MuonTpMode mode) { return name_of(mode); }
std::string_view name(NsCoefficients type) { return name_of(type); }
std::string_view name(Moment2Method method) { return name_of(method); }

std::string to_json(const OptimizerConfig& config) {
  ordered_json json = ordered_json::object();
  for_each_field(
      config, [&](const char* field, const auto& value) { json[field] = written(field, value); });
  return json.dump(2, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

OptimizerConfig optimizer_config_from_json(std::string_view text) {
  const ordered_json json = parse(text);
  OptimizerConfig config;
  std::set<std::string_view> known;
  for_each_field(config, [&](const char* field, auto& value) {
    known.insert(field);
    if (const auto at = json.find(field); at != json.end()) read(field, *at, value);
  });
  for (const auto& [field, value] : json.items()) {
    if (!known.contains(field)) refuse_field(field, "is not a field of OptimizerConfig");
  }
  return config;
}

}  // namespace optim
