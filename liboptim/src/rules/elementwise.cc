// The rows of the rules that update element by element: Adam, SGD, Lion.
#include <array>

#include "rules/rows.h"

namespace optim::rows {
namespace {

using Content = GroupField::Content;
using Kind = StateSpec::Kind;
using enum SettingRange;

std::vector<Setting> adam_settings(AdamRule& rule) {
  return {{"beta1", &rule.beta1, Averaging, "adam_beta1", "betas"},
          {"beta2", &rule.beta2, Averaging, "adam_beta2", "betas"},
          {"eps", &rule.eps, AtLeastZero, "adam_eps", "eps"},
          {"decoupled_weight_decay", &rule.decoupled_weight_decay, Any, "decoupled_weight_decay",
           "decoupled_weight_decay"},
          {"bias_correction", &rule.bias_correction, Any, {}, "bias_correction"},
          {"arithmetic", choice(rule.arithmetic)}};
}

StepCount adam_steps(const RuleConfig& config) {
  switch (config.get_if<AdamRule>()->arithmetic) {
    case AdamArithmetic::FusedAdam:
    case AdamArithmetic::TransformerEngine: return StepCount::PerGroup;
    default: return StepCount::Tensor;
  }
}

// torch.optim's defaults of options that have no effect here are written as torch has them.
std::vector<GroupField> adam_fields(const RuleConfig& config) {
  if (adam_steps(config) == StepCount::PerGroup) {
    return {{"bias_correction"},
            {"betas"},
            {"eps"},
            {"weight_decay", Content::WeightDecay},
            {"step", Content::Step}};
  }
  const bool is_fused = config.get_if<AdamRule>()->arithmetic == AdamArithmetic::Fused;
  return {{"betas"},
          {"eps"},
          {"weight_decay", Content::WeightDecay},
          {"amsgrad", Content::False},
          {"maximize", Content::False},
          {"foreach", Content::None},
          {"capturable", Content::False},
          {"differentiable", Content::False},
          {"fused", is_fused ? Content::True : Content::None},
          {"decoupled_weight_decay"}};
}

std::vector<StateSpec> adam_states(const RuleConfig&, ParamShape shape) {
  return {moment("exp_avg", Kind::FirstMoment, shape),
          moment("exp_avg_sq", Kind::SecondMoment, shape)};
}

std::vector<Setting> sgd_settings(SgdRule& rule) {
  return {{"momentum", &rule.momentum, Averaging, "sgd_momentum", "momentum"}};
}

std::vector<GroupField> sgd_fields(const RuleConfig&) {  // torch.optim.SGD's, in its order
  return {{"momentum"},
          {"dampening", Content::Zero},
          {"weight_decay", Content::WeightDecay},
          {"nesterov", Content::False},
          {"maximize", Content::False},
          {"foreach", Content::None},
          {"differentiable", Content::False},
          {"fused", Content::None}};
}

std::vector<StateSpec> sgd_states(const RuleConfig& config, ParamShape shape) {
  if (config.get_if<SgdRule>()->momentum == 0) return {};
  return {moment("momentum_buffer", Kind::FirstMoment, shape)};
}

constexpr std::array<std::string_view, 1> kSgdOptions = {"nesterov"};

std::vector<Setting> lion_settings(LionRule& rule) {
  return {{"beta1", &rule.beta1, Averaging, "lion_beta1", "betas"},
          {"beta2", &rule.beta2, Averaging, "lion_beta2", "betas"},
          {"weight_decay_method", choice(rule.weight_decay_method)}};
}

std::vector<GroupField> lion_fields(const RuleConfig&) {
  return {{"betas"}, {"weight_decay", Content::WeightDecay}};
}

std::vector<StateSpec> lion_states(const RuleConfig&, ParamShape shape) {
  return {moment("exp_avg", Kind::FirstMoment, shape)};
}

TraceBound elementwise_bound(const RuleConfig&) { return {.max_ulp = 4}; }

}  // namespace

RuleDescription adam() {
  return {.name = AdamRule::kName,
          .by_element = true,
          .in_reference = true,
          .defaults = defaults<AdamRule>,
          .settings = settings<AdamRule, adam_settings>,
          .fields = adam_fields,
          .states = adam_states,
          .step_count = adam_steps,
          .bound = elementwise_bound};
}

RuleDescription sgd() {
  return {.name = SgdRule::kName,
          .by_element = true,
          .in_reference = true,
          .unsupported_options = kSgdOptions,
          .defaults = defaults<SgdRule>,
          .settings = settings<SgdRule, sgd_settings>,
          .fields = sgd_fields,
          .states = sgd_states,
          .bound = elementwise_bound};
}

RuleDescription lion() {
  return {.name = LionRule::kName,
          .by_element = true,
          .trace = "emerging_optimizers Lion",
          .defaults = defaults<LionRule>,
          .settings = settings<LionRule, lion_settings>,
          .fields = lion_fields,
          .states = lion_states,
          .bound = elementwise_bound};
}

}  // namespace optim::rows
