// SOAP's row.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace rows {
namespace {

using Content = GroupField::Content;
using Kind = StateSpec::Kind;
using enum SettingRange;

std::vector<Setting> schedule_settings(PreconditionSchedule& schedule) {
  return {
      {"precondition_frequency", &schedule.frequency, AtLeastOne, "soap_precondition_frequency"},
      {"precondition_schedule", choice(schedule.kind)},
      {"min_freq", &schedule.min_frequency, AtLeastOne},
      {"max_freq", &schedule.max_frequency, AtLeastOne},
      {"transition_steps", &schedule.transition_steps, AtLeastOne},
      {"start_step", &schedule.start_step, AtLeastZero},
      {"schedule_dict", &schedule.steps}};
}

std::vector<Setting> soap_settings(SoapRule& rule) {
  std::vector<Setting> all = {
      {"beta1", &rule.beta1, Averaging, "adam_beta1", "betas"},
      {"beta2", &rule.beta2, Averaging, "adam_beta2", "betas"},
      {"shampoo_beta", &rule.shampoo_beta, Averaging, "soap_shampoo_beta", "shampoo_beta"},
      {"eps", &rule.eps, AtLeastZero, {}, "eps"},
      {"weight_decay_method", choice(rule.weight_decay_method)},
      {"nesterov", &rule.nesterov},
      {"correct_bias", &rule.correct_bias},
      {"correct_shampoo_beta_bias", &rule.correct_shampoo_beta_bias},
      {"fp32_matmul_prec", choice(rule.fp32_matmul_prec)},
      {"qr_fp32_matmul_prec", choice(rule.qr_fp32_matmul_prec)},
      {"use_eigh", &rule.use_eigh},
      {"power_iter_steps", &rule.power_iter_steps, AtLeastOne},
      {"max_update_rms", &rule.max_update_rms, AtLeastZero},
      {"use_kl_shampoo", &rule.use_kl_shampoo, Any, "soap_use_kl_shampoo"},
      {"adam_warmup_steps", &rule.adam_warmup_steps, AtLeastZero},
      {"use_adaptive_criteria", &rule.use_adaptive_criteria},
      {"adaptive_update_tolerance", &rule.adaptive_update_tolerance, AtLeastZero},
      {"era", choice(rule.era)}};
  const std::vector<Setting> schedule = schedule_settings(rule.precondition_frequency);
  all.insert(all.end(), schedule.begin(), schedule.end());
  return all;
}

std::vector<GroupField> soap_fields(const RuleConfig&) {
  return {{"betas"}, {"shampoo_beta"}, {"eps"}, {"weight_decay", Content::WeightDecay}};
}

StateSpec square(std::string_view name, int64_t size, InitialState initial) {
  return {.name = name,
          .kind = Kind::Factor,
          .shape = {size, size},
          .initial = initial,
          .own_shape = true};
}

std::vector<StateSpec> soap_states(const RuleConfig&, ParamShape shape) {
  std::vector<StateSpec> states = {moment("exp_avg", Kind::FirstMoment, shape),
                                   moment("exp_avg_sq", Kind::SecondMoment, shape)};
  if (shape.size() != 2) return states;
  states.push_back(square("L", shape[0], InitialState::Zeros));
  states.push_back(square("R", shape[1], InitialState::Zeros));
  states.push_back(square("Q_L", shape[0], InitialState::Identity));
  states.push_back(square("Q_R", shape[1], InitialState::Identity));
  return states;
}

StepCount soap_steps(const RuleConfig&) { return StepCount::Number; }

void require_positive(std::string_view name, int64_t value) {
  if (value < 1) refuse_key(name, "expected at least 1, found " + std::to_string(value));
}

void check_schedule(const PreconditionSchedule& schedule) {
  require_positive("soap_precondition_frequency", schedule.frequency);
  if (schedule.kind == PreconditionSchedule::Kind::Constant) return;
  require_positive("transition_steps", schedule.transition_steps);
  if (schedule.start_step < 0) refuse_key("start_step", "is negative");
  if (schedule.kind != PreconditionSchedule::Kind::Steps) {
    require_positive("min_freq", schedule.min_frequency);
    if (schedule.max_frequency >= schedule.min_frequency) return;
    refuse_key("max_freq", "is below min_freq");
  }
  if (schedule.steps.empty()) refuse_key("schedule_dict", "is empty");
  for (const auto& [step, frequency] : schedule.steps) {
    require_positive("schedule_dict", frequency);
    if (step < 0) refuse_key("schedule_dict", "has a negative step");
  }
  if (!std::ranges::is_sorted(schedule.steps)) refuse_key("schedule_dict", "is not sorted by step");
}

// What 0.3 does not have any more.
void check_options_of_03(const SoapRule& rule) {
  const PreconditionSchedule& schedule = rule.precondition_frequency;
  const auto refuse = [](std::string_view name) {
    refuse_key(name, "emerging_optimizers 0.3 does not have this option, 0.2 has it; choose 0.2",
               ckpt::ErrorCode::Unsupported);
  };
  const bool is_constant = schedule.kind == PreconditionSchedule::Kind::Constant;
  if (!is_constant || schedule.frequency != 1) refuse("soap_precondition_frequency");
  if (rule.adam_warmup_steps != 0) refuse("adam_warmup_steps");
  if (rule.use_adaptive_criteria) refuse("use_adaptive_criteria");
}

void check_soap(const RuleConfig& config) {
  const auto& rule = *config.get_if<SoapRule>();
  check_schedule(rule.precondition_frequency);
  check_decay(rule.weight_decay_method, rule.era);
  require_positive("power_iter_steps", rule.power_iter_steps);
  if (rule.adam_warmup_steps < 0) refuse_key("adam_warmup_steps", "is negative");
  if (!(rule.max_update_rms >= 0)) refuse_key("max_update_rms", "is negative");
  if (rule.era == EmergingOptimizers::V0_3) check_options_of_03(rule);
}

TraceBound soap_bound(const RuleConfig&) { return {.max_scaled = 1e-5}; }

}  // namespace

RuleDescription soap() {
  return {.name = SoapRule::kName,
          .is_emerging = true,
          .needs_matrix = true,
          .checks_states = true,
          .in_reference = true,
          .trace = "emerging_optimizers SOAP",
          .defaults = defaults<SoapRule>,
          .settings = settings<SoapRule, soap_settings>,
          .fields = soap_fields,
          .states = soap_states,
          .step_count = soap_steps,
          .bound = soap_bound,
          .cost = matrix_cost,
          .check = check_soap};
}

}  // namespace rows

namespace {

// Between the bounds, towards zero: as Python's int().
double unclamped_frequency(const PreconditionSchedule& schedule, int64_t step) {
  const auto least = static_cast<double>(schedule.min_frequency);
  const auto most = static_cast<double>(schedule.max_frequency);
  const auto length = static_cast<double>(schedule.transition_steps);
  if (schedule.kind == PreconditionSchedule::Kind::Linear) {
    if (step > schedule.transition_steps) return most;
    return least + (most - least) * (static_cast<double>(step) / length);
  }
  const auto place = static_cast<double>(step % schedule.transition_steps);
  const double progress = (1 + std::cos(std::numbers::pi * place / length)) / 2;
  return most - (most - least) * progress;
}

int64_t stepwise_frequency(const PreconditionSchedule& schedule, int64_t step) {
  const auto by_frequency = [](const auto& entry) { return entry.second; };
  if (step < schedule.start_step) {
    return std::ranges::min(schedule.steps, {}, by_frequency).second;
  }
  int64_t frequency = schedule.steps.front().second;
  for (const auto& [from, value] : schedule.steps) {
    if (step >= from) frequency = value;
  }
  return frequency;
}

}  // namespace

int64_t frequency_at(const PreconditionSchedule& schedule, int64_t step) {
  switch (schedule.kind) {
    case PreconditionSchedule::Kind::Constant: return schedule.frequency;
    case PreconditionSchedule::Kind::Steps: return stepwise_frequency(schedule, step);
    default: break;
  }
  if (step < schedule.start_step) return schedule.min_frequency;
  return std::clamp(static_cast<int64_t>(unclamped_frequency(schedule, step)),
                    schedule.min_frequency, schedule.max_frequency);
}

}  // namespace optim
