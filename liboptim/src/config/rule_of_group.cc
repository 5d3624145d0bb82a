// A rule's settings out of the configuration and the overrides of a group.
#include <ckpt/error.h>
#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <string>
#include <type_traits>

#include "config/config_fields.h"

namespace optim {
namespace {

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
