#include "group_settings.h"

#include <optim/checkpoint_args.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "rules/rows.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

// Absent and None are false, as in Python.
bool is_true(const Value& dict, const std::string& key) {
  const auto value = dict.find(key);
  if (!value || value->is_none()) return false;
  const bool is_flag = value->is(Kind::Bool) ||
                       (value->is(Kind::Int) && (value->as_int() == 0 || value->as_int() == 1));
  if (!is_flag)
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, key, "expected True or False, found another value");
  return value->as_int() == 1;
}

bool is_finite_number(const Value& value) {
  return (value.is(Kind::Float) || value.is(Kind::Int)) && std::isfinite(value.as_float());
}

double at_least_zero(const Value& dict, const std::string& key) {
  const double value = number_field(dict, key);
  if (value >= 0) return value;
  refuse_checkpoint(ckpt::ErrorCode::Corrupt, key,
                    "expected a number of at least 0, found " + std::to_string(value));
}

std::optional<double> optional_rate(const Value& dict, const std::string& key) {
  const auto value = dict.find(key);
  if (!value || value->is_none()) return std::nullopt;
  return at_least_zero(dict, key);
}

// A coefficient of a running average.
double averaging(const Value& value, const std::string& key) {
  const bool fits = is_finite_number(value) && value.as_float() >= 0 && value.as_float() < 1;
  if (!fits)
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, key, "expected a number of at least 0 and below 1");
  return value.as_float();
}

// What restore_group() understands or may ignore; any other key is an override, kept by name.
constexpr std::array<std::string_view, 13> kKnown = {"params",         "is_expert_parallel",
                                                     "default_config", "wd_mult",
                                                     "lr_mult",        "is_decoupled_lr",
                                                     "max_lr",         "min_lr",
                                                     "optimizer",      "lr",
                                                     "step",           "decoupled_weight_decay",
                                                     "initial_lr"};

// Of any rule: groups have fields of the rule that made them first, too.
bool is_rule_field(std::string_view name) {
  return std::ranges::any_of(rule_table(), [&](const RuleDescription* rule) {
    const auto fields = rule->fields(rule->defaults());
    return std::ranges::find(fields, name, &GroupField::name) != fields.end();
  });
}

void read_overrides(const Value& fields, ParamGroup& group) {
  for (const auto& [key, value] : ckpt::items_of(fields)) {
    if (!key.is(Kind::Str))
      refuse_checkpoint(ckpt::ErrorCode::Corrupt, "param_groups", "has a key that is not a string");
    const std::string name(key.text());
    if (std::ranges::find(kKnown, name) != kKnown.end() || is_rule_field(name)) continue;
    if (name == "bias_correction") continue;  // FusedAdam's, where the arithmetic is torch's
    switch (value.kind()) {
      case Kind::Bool: group.others[name] = value.as_bool(); break;
      case Kind::Int: group.others[name] = value.as_int(); break;
      case Kind::Float: group.others[name] = value.as_float(); break;
      case Kind::Str: group.others[name] = std::string(value.text()); break;
      default:
        refuse_checkpoint(ckpt::ErrorCode::Unsupported, name,
                          "a parameter group has this setting, which is not supported");
    }
  }
}

ParamGroup restore_settings(const GroupSource& source, const OptimizerConfig& config) {
  const Value& fields = source.fields;
  ParamGroup group;
  group.optimizer_index = source.optimizer;
  group.is_expert_parallel = is_true(fields, "is_expert_parallel");
  group.default_config = is_true(fields, "default_config");
  group.wd_mult = at_least_zero(fields, "wd_mult");
  group.lr_mult = at_least_zero(fields, "lr_mult");
  group.is_decoupled_lr = is_true(fields, "is_decoupled_lr");
  // Of input and output layers with a rate of their own an argument of the run decides no other.
  const auto counts = [&](const char* argument) {
    return group.is_decoupled_lr || !source.overrides.has(argument);
  };
  if (counts("lr")) group.max_lr = optional_rate(fields, "max_lr");
  if (counts("min_lr")) group.min_lr = optional_rate(fields, "min_lr");
  if (const auto optimizer = fields.find("optimizer")) group.optimizer = optimizer->text();
  group.updated_by = group.optimizer.value_or(config.optimizer);
  read_overrides(fields, group);
  return group;
}

// Switches may be absent, numbers may not.
void restore_setting(const Setting& setting, RuleConfig& config, const Value& fields) {
  const std::string field(setting.field);
  if (auto* const* const flag = std::get_if<bool*>(&setting.place)) {
    if (fields.find(field)) **flag = is_true(fields, field);
    return;
  }
  auto* const* const place = std::get_if<double*>(&setting.place);
  if (place == nullptr) return;
  const Value value = fields.at(field);
  if (setting.field != setting.name) {  // a list that several settings share
    const auto [index, count] = rows::place_in_list(setting, settings_of(config));
    if (value.size() != count) {
      refuse_checkpoint(ckpt::ErrorCode::Corrupt, field,
                        count == 2 ? "are not two numbers" : "has another number of values");
    }
    **place = averaging(value[index], field);
    return;
  }
  const bool is_average = setting.range == SettingRange::Averaging;
  **place = is_average ? averaging(value, field) : at_least_zero(fields, field);
}

// A DistributedOptimizer counts torch's steps in its groups, too, which have torch's settings.
void restore_arithmetic(const GroupSource& source, RuleConfig& config) {
  auto* const adam = config.get_if<AdamRule>();
  if (adam == nullptr) return;
  if (source.step_layout == StepLayout::PerGroup && !source.fields.find("foreach")) {
    adam->arithmetic = AdamArithmetic::FusedAdam;
  } else if (is_true(source.fields, "fused")) {
    adam->arithmetic = AdamArithmetic::Fused;
  }
  adam->arithmetic = source.overrides.adam_arithmetic().value_or(adam->arithmetic);
}

RuleConfig restore_rule(const GroupSource& source, RuleConfig config) {
  for (const char* const option : {"amsgrad", "maximize", "dampening"}) {
    const auto value = source.fields.find(option);
    const bool is_number = value && (value->is(Kind::Float) || value->is(Kind::Int));
    if (is_number ? value->as_float() != 0 : is_true(source.fields, option)) {
      refuse_checkpoint(ckpt::ErrorCode::Unsupported, option, "the optimizer's option is set");
    }
  }
  for (const std::string_view option : rule_named(config.name()).unsupported_options) {
    if (is_true(source.fields, std::string(option))) {
      refuse_checkpoint(ckpt::ErrorCode::Unsupported, std::string(option),
                        "the optimizer's option is set");
    }
  }
  restore_arithmetic(source, config);
  const std::vector<GroupField> fields = rule_named(config.name()).fields(config);
  for (const Setting& setting : settings_of(config)) {
    const bool is_in_groups =
        !setting.field.empty() &&
        std::ranges::find(fields, setting.field, &GroupField::name) != fields.end();
    if (is_in_groups && !source.overrides.has(setting.config))
      restore_setting(setting, config, source.fields);
  }
  return config;
}

}  // namespace

void refuse_checkpoint(ckpt::ErrorCode code, const std::string& key, const std::string& problem) {
  const bool is_unsupported = code == ckpt::ErrorCode::Unsupported;
  throw ckpt::Error(code, {.file = {}, .key = key}, problem,
                    is_unsupported ? kWorksOnUnreplayed : "");
}

double number_field(const Value& dict, const std::string& key) {
  const Value value = dict.at(key);
  if (!is_finite_number(value)) {
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, key,
                      "expected a finite number, found another value");
  }
  return value.as_float();
}

int64_t whole_field(const Value& dict, const std::string& key) {
  const Value value = dict.at(key);
  if (!value.is(Kind::Int)) {
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, key,
                      "expected a whole number, found another value");
  }
  return value.as_int();
}

OptimizerGroup restore_group(const GroupSource& source, const OptimizerConfig& config,
                             const Value& args) {
  OptimizerGroup group;
  group.settings = restore_settings(source, config);
  group.lr = at_least_zero(source.fields, "lr");
  group.weight_decay = at_least_zero(source.fields, "weight_decay");
  const RuleDescription& rule = rule_named(group.settings.updated_by);
  const bool splits = rule.has_tp_modes && config.muon_split_qkv;
  const std::optional<QkvSplit> split =
      splits ? std::optional(qkv_split_from_args(args)) : std::nullopt;
  group.rule_config =
      restore_rule(source, rule_of_group(group.settings, config, split, source.era));
  group.rule = make_rule(group.rule_config);
  return group;
}

}  // namespace optim
