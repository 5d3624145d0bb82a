#include "step/replay/group_settings.h"

#include <ckpt/error.h>
#include <optim/checkpoint_args.h>
#include <array>
#include <cmath>
#include <string_view>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

[[noreturn]] void refuse(ckpt::ErrorCode code, const std::string& key, const std::string& problem) {
  const bool is_unsupported = code == ckpt::ErrorCode::Unsupported;
  throw ckpt::Error(code, {.file = {}, .key = key}, problem,
                    is_unsupported ? kWorksOnUnreplayed : "");
}

// Absent and None are false, as in Python.
bool is_true(const Value& dict, const std::string& key) {
  const auto value = dict.find(key);
  if (!value || value->is_none()) return false;
  const bool is_flag = value->is(Kind::Bool) ||
                       (value->is(Kind::Int) && (value->as_int() == 0 || value->as_int() == 1));
  if (!is_flag)
    refuse(ckpt::ErrorCode::Corrupt, key, "expected True or False, found another value");
  return value->as_int() == 1;
}

bool is_finite_number(const Value& value) {
  return (value.is(Kind::Float) || value.is(Kind::Int)) && std::isfinite(value.as_float());
}

double at_least_zero(const Value& dict, const std::string& key) {
  const double value = number_field(dict, key);
  if (value >= 0) return value;
  refuse(ckpt::ErrorCode::Corrupt, key,
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
  if (!fits) refuse(ckpt::ErrorCode::Corrupt, key, "expected a number of at least 0 and below 1");
  return value.as_float();
}

// What restore_group() understands or may ignore; any other key is an override, kept by name.
constexpr std::array<std::string_view, 24> kKnown = {"params",
                                                     "is_expert_parallel",
                                                     "default_config",
                                                     "wd_mult",
                                                     "lr_mult",
                                                     "is_decoupled_lr",
                                                     "max_lr",
                                                     "min_lr",
                                                     "optimizer",
                                                     "lr",
                                                     "weight_decay",
                                                     "momentum",
                                                     "betas",
                                                     "eps",
                                                     "step",
                                                     "bias_correction",
                                                     "amsgrad",
                                                     "maximize",
                                                     "foreach",
                                                     "capturable",
                                                     "differentiable",
                                                     "fused",
                                                     "decoupled_weight_decay",
                                                     "initial_lr"};

void read_overrides(const Value& fields, ParamGroup& group) {
  for (size_t i = 0; i < fields.item_count(); ++i) {
    const auto [key, value] = fields.item(i);
    if (!key.is(Kind::Str))
      refuse(ckpt::ErrorCode::Corrupt, "param_groups", "has a key that is not a string");
    const std::string name(key.text());
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    switch (value.kind()) {
      case Kind::Bool: group.others[name] = value.as_bool(); break;
      case Kind::Int: group.others[name] = value.as_int(); break;
      case Kind::Float: group.others[name] = value.as_float(); break;
      case Kind::Str: group.others[name] = std::string(value.text()); break;
      default:
        refuse(ckpt::ErrorCode::Unsupported, name,
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
  group.max_lr = optional_rate(fields, "max_lr");
  group.min_lr = optional_rate(fields, "min_lr");
  if (const auto optimizer = fields.find("optimizer")) group.optimizer = optimizer->text();
  group.updated_by = group.optimizer.value_or(config.optimizer);
  read_overrides(fields, group);
  return group;
}

AdamRule restore_adam(const GroupSource& source, const OptimizerConfig& config) {
  const Value& fields = source.fields;
  for (const char* const option : {"amsgrad", "maximize"}) {
    if (is_true(fields, option))
      refuse(ckpt::ErrorCode::Unsupported, option, "Adam's option is set");
  }
  AdamRule rule;
  const Value betas = fields.at("betas");
  if (betas.size() != 2) refuse(ckpt::ErrorCode::Corrupt, "betas", "are not two numbers");
  rule.beta1 = averaging(betas[0], "betas");
  rule.beta2 = averaging(betas[1], "betas");
  rule.eps = at_least_zero(fields, "eps");
  rule.decoupled_weight_decay = config.decoupled_weight_decay;
  if (fields.find("decoupled_weight_decay")) {
    rule.decoupled_weight_decay = is_true(fields, "decoupled_weight_decay");
  }
  // A DistributedOptimizer counts torch's steps in its groups, too, which have torch's settings.
  if (source.step_layout == StepLayout::PerGroup && !fields.find("foreach")) {
    rule.arithmetic = AdamArithmetic::FusedAdam;
    rule.bias_correction = !fields.find("bias_correction") || is_true(fields, "bias_correction");
  }
  return rule;
}

}  // namespace

double number_field(const Value& dict, const std::string& key) {
  const Value value = dict.at(key);
  if (!is_finite_number(value)) {
    refuse(ckpt::ErrorCode::Corrupt, key, "expected a finite number, found another value");
  }
  return value.as_float();
}

int64_t whole_field(const Value& dict, const std::string& key) {
  const Value value = dict.at(key);
  if (!value.is(Kind::Int)) {
    refuse(ckpt::ErrorCode::Corrupt, key, "expected a whole number, found another value");
  }
  return value.as_int();
}

OptimizerGroup restore_group(const GroupSource& source, const OptimizerConfig& config,
                             const Value& args) {
  OptimizerGroup group;
  group.settings = restore_settings(source, config);
  group.lr = at_least_zero(source.fields, "lr");
  group.weight_decay = at_least_zero(source.fields, "weight_decay");
  const bool is_muon = group.settings.updated_by == "muon";
  const bool splits = is_muon && config.muon_split_qkv;
  const std::optional<QkvSplit> split =
      splits ? std::optional(qkv_split_from_args(args)) : std::nullopt;
  group.rule_config = rule_of_group(group.settings, config, split);
  if (auto* const muon = std::get_if<MuonRule>(&group.rule_config)) {
    muon->momentum = averaging(source.fields.at("momentum"), "momentum");
  } else if (std::holds_alternative<AdamRule>(group.rule_config)) {
    group.rule_config = restore_adam(source, config);
  } else {
    refuse(ckpt::ErrorCode::Unsupported, "optimizer",
           "checkpoints of '" + group.settings.updated_by + "' are not replayed");
  }
  group.rule = make_rule(group.rule_config);
  return group;
}

}  // namespace optim
