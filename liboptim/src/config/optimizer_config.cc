#include <optim/optimizer_config.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include <optim/emerging_rules.h>
#include <optim/param_group.h>
#include <optim/rule_table.h>

#include "config/config_fields.h"
#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

using nlohmann::ordered_json;

template <typename Mode>
std::string_view name_of(Mode mode) {
  const auto index = static_cast<size_t>(mode);
  return index < names_of(mode).size() ? names_of(mode)[index] : std::string_view("?");
}

// One overload per type of field. `field` is only for messages.
ordered_json written(std::string_view, bool value) { return value; }
ordered_json written(std::string_view, int64_t value) { return value; }
ordered_json written(std::string_view, const std::string& value) { return value; }
ordered_json written(std::string_view, ckpt::DType value) { return ckpt::name(value); }
ordered_json written(std::string_view field, double value) {
  if (!std::isfinite(value)) refuse_key(field, "is not finite, and JSON cannot express it");
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
  if (!right) refuse_key(field, "the JSON value is not " + std::string(expected));
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

// Where the configuration's field has the type of the setting.
struct Assign {
  const Setting& setting;
  const std::optional<QkvSplit>& qkv_split;

  template <class Field>
  void operator()(const char* name, const Field& field) const {
    if (setting.config != name) return;
    std::visit([&](const auto& place) { assign(place, field); }, setting.place);
  }

  template <class Value>
  static void assign(Value* place, const Value& field) {
    *place = field;
  }
  template <class Mode>
  requires std::is_enum_v<Mode>
  static void assign(const SettingChoice& choice, Mode field) {
    *choice.value = static_cast<uint8_t>(field);
  }
  void assign(std::optional<QkvSplit>* place, bool splits) const {
    if (splits) *place = qkv_split;
  }
  template <class Place, class Field>
  static void assign(const Place&, const Field&) {}  // of another type: no setting is one
};

double number_of_override(std::string_view field, const OverrideValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "an override of " + std::string(field) + " is not a number");
}

void set_era(RuleConfig& rule, EmergingOptimizers era) {
  if (auto* const soap = rule.get_if<SoapRule>()) soap->era = era;
  if (auto* const adaptive = rule.get_if<AdaptiveMuonRule>()) {
    adaptive->era = era;
    adaptive->scales_twice = era == EmergingOptimizers::V0_3;
  }
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
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_key({}, "expected a JSON object with the optimizer configuration");
  OptimizerConfig config;
  std::set<std::string_view> known;
  for_each_field(config, [&](const char* field, auto& value) {
    known.insert(field);
    if (const auto at = json.find(field); at != json.end()) read(field, *at, value);
  });
  for (const auto& [field, value] : json.items()) {
    if (!known.contains(field)) refuse_key(field, "is not a field of OptimizerConfig");
  }
  return config;
}

void set_override(ConfigOverrides& overrides, ParamKey key, ParamGroupOverride value) {
  const auto at = std::ranges::find(overrides, key, &ConfigOverrides::value_type::first);
  if (at != overrides.end())
    at->second = std::move(value);
  else
    overrides.emplace_back(std::move(key), std::move(value));
}

ConfigOverrides get_standard_config_overrides(const OptimizerConfig& config) {
  ConfigOverrides overrides;
  if (config.apply_wd_to_qk_layernorm) {
    ParamWithNamePredicate not_decayed{
        "s1_not_qkln", [](const ParamInfo& param, std::string_view name) {
          const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
          return (param.shape.size() == 1 || name.ends_with(".bias")) && !has("q_layernorm.") &&
                 !has("k_layernorm.");
        }};
    set_override(overrides, {.with_name_predicate = {std::move(not_decayed)}}, {{"wd_mult", 0.0}});
  } else {
    ParamPredicate is_vector{"param_len_1",
                             [](const ParamInfo& param) { return param.shape.size() == 1; }};
    set_override(overrides, {.name = {"*.bias"}, .predicate = {std::move(is_vector)}},
                 {{"wd_mult", 0.0}});
  }
  if (config.decoupled_lr) {
    ParamGroupOverride decoupled{{"max_lr", *config.decoupled_lr}};
    if (config.decoupled_min_lr) decoupled.emplace("min_lr", *config.decoupled_min_lr);
    set_override(overrides, {.attr = {"is_embedding_or_output_parameter"}}, std::move(decoupled));
  }
  return overrides;
}

RuleConfig rule_of_group(const ParamGroup& group, const OptimizerConfig& config,
                         const std::optional<QkvSplit>& qkv_split, EmergingOptimizers era) {
  const RuleDescription& row = rule_named(group.updated_by);
  RuleConfig rule = row.defaults();
  for (const Setting& setting : settings_of(rule)) {
    for_each_field(config, Assign{setting, qkv_split});
    const auto override = group.others.find(std::string(setting.field));
    if (override == group.others.end()) continue;
    if (auto* const* place = std::get_if<double*>(&setting.place)) {
      **place = number_of_override(setting.field, override->second);
    }
  }
  set_era(rule, era);
  if (row.check != nullptr) row.check(rule);
  return rule;
}

}  // namespace optim
