#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include <ckpt/printed.h>
#include <optim/optimizer_config.h>

#include "config/config_fields.h"
#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::ErrorCode;

// A rule about a field: `broken` says that this configuration breaks it.
struct Rule {
  bool broken;
  std::string_view field;
  std::string_view problem;
};

void enforce(std::initializer_list<Rule> rules, ErrorCode code) {
  for (const Rule& rule : rules) {
    if (rule.broken) refuse_key(rule.field, std::string(rule.problem), code);
  }
}

void require_finite_numbers(const OptimizerConfig& config) {
  for_each_field(config, [](const char* field, const auto& value) {
    using Field = std::decay_t<decltype(value)>;
    bool finite = true;
    if constexpr (std::is_same_v<Field, double>) finite = std::isfinite(value);
    if constexpr (std::is_same_v<Field, std::optional<double>>) {
      finite = !value || std::isfinite(*value);
    }
    if (!finite) refuse_key(field, "is not a finite number");
  });
}

void require_range(std::string_view field, SettingRange range, double value) {
  using enum SettingRange;
  if (range == AtLeastZero && value < 0) refuse_key(field, "is negative");
  if (range == AtLeastOne && value < 1) refuse_key(field, "must be at least 1");
  if (range == Averaging && (value < 0 || value >= 1)) {
    refuse_key(field, "is not in the range [0, 1)");
  }
}

// The fields that a rule reads, whether or not it is this configuration's.
void require_settings(const RuleDescription& rule, const OptimizerConfig& config) {
  RuleConfig defaults = rule.defaults();
  for (const Setting& setting : settings_of(defaults)) {
    for_each_field(config, [&](const char* name, const auto& value) {
      using Field = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, int64_t>) {
        if (setting.config == name) {
          require_range(setting.config, setting.range, static_cast<double>(value));
        }
      }
    });
  }
}

void require_ranges(const OptimizerConfig& c) {
  using enum SettingRange;
  require_finite_numbers(c);
  require_range("lr", AtLeastZero, c.lr.value_or(0));
  require_range("min_lr", AtLeastZero, c.min_lr.value_or(0));
  require_range("decoupled_lr", AtLeastZero, c.decoupled_lr.value_or(0));
  require_range("decoupled_min_lr", AtLeastZero, c.decoupled_min_lr.value_or(0));
  require_range("weight_decay", AtLeastZero, c.weight_decay);
  require_range("clip_grad", AtLeastZero, c.clip_grad);
  require_range("optimizer_offload_fraction", AtLeastZero, c.optimizer_offload_fraction);
  require_range("loss_scale_window", AtLeastOne, c.loss_scale_window);
  require_range("hysteresis", AtLeastOne, static_cast<double>(c.hysteresis));
  for (const RuleDescription* const rule : rule_table()) require_settings(*rule, c);
}

void require_sense(const OptimizerConfig& c) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::string unknown =
      "is not one of " + ckpt::joined(rule_table(), ", ", &RuleDescription::name);
  const std::string_view scalar = c.muon_scalar_optimizer;
  const std::string ns_steps = "expected at most " + std::to_string(kNewtonSchulzStepsMax) +
                               " Newton-Schulz steps, found " + std::to_string(c.muon_num_ns_steps);
  enforce(
      {{find_rule(c.optimizer) == nullptr, "optimizer", unknown},
       {scalar != "adam" && scalar != "lion", "muon_scalar_optimizer", "is neither adam nor lion"},
       {c.min_lr.value_or(0) > c.lr.value_or(kMost), "min_lr", "is greater than lr"},
       {c.decoupled_min_lr && !c.decoupled_lr, "decoupled_min_lr",
        "has no effect without decoupled_lr"},
       {c.decoupled_min_lr.value_or(0) > c.decoupled_lr.value_or(kMost), "decoupled_min_lr",
        "is greater than decoupled_lr"},
       {c.fp16 && c.bf16, "bf16", "cannot be set together with fp16"},
       {c.loss_scale.value_or(1) <= 0, "loss_scale", "is not positive"},
       {c.loss_scale && !c.fp16 && !c.bf16, "loss_scale", "has no effect without fp16 or bf16"},
       {c.initial_loss_scale <= 0, "initial_loss_scale", "is not positive"},
       {c.min_loss_scale <= 0, "min_loss_scale", "is not positive"},
       {c.min_loss_scale > c.initial_loss_scale, "min_loss_scale",
        "is greater than initial_loss_scale"},
       {c.use_distributed_optimizer && c.use_layer_wise_distributed_optimizer,
        "use_distributed_optimizer", "cannot be set together with the layer-wise optimizer"},
       {c.overlap_param_gather_with_optimizer_step && !c.overlap_param_gather,
        "overlap_param_gather_with_optimizer_step", "has no effect without overlap_param_gather"},
       {c.muon_num_ns_steps > kNewtonSchulzStepsMax, "muon_num_ns_steps", ns_steps},
       {c.muon_coefficient_type == NsCoefficients::Cubic5 && c.muon_num_ns_steps != 5,
        "muon_num_ns_steps", "must be 5 with the coefficients 'cubic5'"},
       {c.muon_coefficient_type == NsCoefficients::Custom, "muon_coefficient_type",
        "does not name a table; give custom coefficients in NewtonSchulzOptions"},
       {c.optimizer_offload_fraction > 1, "optimizer_offload_fraction", "is greater than 1"}},
      ErrorCode::InvalidArgument);
}

bool is_one_of(DType dtype, std::initializer_list<DType> allowed) {
  return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
}

// Element types that a field cannot have, or that contradict fp16 and bf16.
void require_dtypes(const OptimizerConfig& c) {
  using enum DType;
  const bool is_half = c.fp16 || c.bf16;
  const DType other_half = c.bf16 ? Float16 : BFloat16;
  const auto is_state = [](DType dtype) {
    return is_one_of(dtype, {Float32, BFloat16, Float16, UInt8, Float8E4M3FN});
  };
  constexpr std::string_view kState =
      "is not one of float32, bfloat16, float16, uint8, float8_e4m3fn";
  enforce({{!is_one_of(c.params_dtype, {Float32, BFloat16, Float16}), "params_dtype",
            "is not one of float32, bfloat16, float16"},
           {!is_half && c.params_dtype != Float32, "params_dtype", "needs bf16 or fp16"},
           {is_half && c.params_dtype == other_half, "params_dtype", "contradicts bf16 and fp16"},
           {!is_one_of(c.main_grads_dtype, {Float32, BFloat16}), "main_grads_dtype",
            "is neither float32 nor bfloat16"},
           {!is_one_of(c.main_params_dtype, {Float32, Float16}), "main_params_dtype",
            "is neither float32 nor float16"},
           {!is_half && c.main_params_dtype != Float32, "main_params_dtype",
            "has no effect: fp32 parameters have no masters"},
           {!is_state(c.exp_avg_dtype), "exp_avg_dtype", kState},
           {!is_state(c.exp_avg_sq_dtype), "exp_avg_sq_dtype", kState}},
          ErrorCode::InvalidArgument);
}

// The documented __post_init__: other precisions only through the precision-aware optimizer.
void require_plain_precision(const OptimizerConfig& c) {
  if (c.use_precision_aware_optimizer) return;
  constexpr std::string_view kProblem = "can only be float32 without use_precision_aware_optimizer";
  enforce({{c.main_grads_dtype != DType::Float32, "main_grads_dtype", kProblem},
           {c.main_params_dtype != DType::Float32, "main_params_dtype", kProblem},
           {c.exp_avg_dtype != DType::Float32, "exp_avg_dtype", kProblem},
           {c.exp_avg_sq_dtype != DType::Float32, "exp_avg_sq_dtype", kProblem}},
          ErrorCode::InvalidArgument);
}

// What exists in the reference and not here.
void require_supported(const OptimizerConfig& c) {
  enforce({{c.fp8_recipe.has_value(), "fp8_recipe",
            "fp8 parameters need TransformerEngine's types on a GPU"},
           {c.reuse_grad_buf_for_mxfp8_param_ag, "reuse_grad_buf_for_mxfp8_param_ag",
            "fp8 parameters need TransformerEngine's types on a GPU"},
           {c.use_distributed_optimizer && !rows::has(&RuleDescription::by_element, c.optimizer),
            "use_distributed_optimizer",
            "ranges of elements can be updated by adam, sgd and lion only"}},
          ErrorCode::Unsupported);
}

}  // namespace

bool OptimizerConfig::use_precision_aware_optimizer_no_fp8_or_ds_fp8() const {
  return use_precision_aware_optimizer && (main_params_dtype != DType::Float32 || !fp8_recipe ||
                                           *fp8_recipe == "delayed" || optimizer_cpu_offload);
}

void OptimizerConfig::validate() const {
  require_ranges(*this);
  require_sense(*this);
  require_plain_precision(*this);
  require_dtypes(*this);
  require_supported(*this);
}

// core 0.18-dev: __post_init__, the factory (get_megatron_optimizer) and the layer-wise wrapper.
void OptimizerConfig::validate(ReferenceRules) const {
  require_plain_precision(*this);
  enforce(
      {{use_precision_aware_optimizer && optimizer != "adam", "use_precision_aware_optimizer",
        "the reference allows it with adam only"},
       {use_precision_aware_optimizer && !use_distributed_optimizer,
        "use_precision_aware_optimizer", "the reference needs use_distributed_optimizer for it"},
       {!rows::has(&RuleDescription::in_reference, optimizer), "optimizer",
        "the reference's factory knows adam, sgd, muon and soap"},
       {rows::has(&RuleDescription::is_emerging, optimizer) && fp16, "fp16",
        "the reference has no emerging optimizer with fp16"},
       {rows::has(&RuleDescription::is_emerging, optimizer) &&
            use_layer_wise_distributed_optimizer && !bf16,
        "bf16", "the reference's layer-wise optimizer runs with bf16 only"},
       {optimizer_cpu_offload && !decoupled_weight_decay, "optimizer_cpu_offload",
        "the reference needs decoupled_weight_decay for it"},
       {optimizer_cpu_offload && use_layer_wise_distributed_optimizer, "optimizer_cpu_offload",
        "the reference's layer-wise optimizer has none"}},
      ErrorCode::Unsupported);
}

}  // namespace optim
