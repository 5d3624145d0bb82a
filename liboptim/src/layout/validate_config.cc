#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ckpt/error.h>
#include <optim/optimizer_config.h>

#include "layout/config_fields.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::ErrorCode;

[[noreturn]] void refuse(ErrorCode code, std::string_view field, std::string problem) {
  throw ckpt::Error(code, {.file = {}, .key = std::string(field)}, std::move(problem));
}

// A rule about a field: `broken` says that this configuration breaks it.
struct Rule {
  bool broken;
  std::string_view field;
  std::string_view problem;
};

void enforce(std::initializer_list<Rule> rules, ErrorCode code) {
  for (const Rule& rule : rules) {
    if (rule.broken) refuse(code, rule.field, std::string(rule.problem));
  }
}

bool is_emerging(std::string_view optimizer) {
  return optimizer == "muon" || optimizer == "soap" || optimizer == "adaptive_muon";
}

bool is_known(std::string_view optimizer) {
  return is_emerging(optimizer) || optimizer == "adam" || optimizer == "sgd" || optimizer == "lion";
}

void require_finite_numbers(const OptimizerConfig& config) {
  for_each_field(config, [](const char* field, const auto& value) {
    using Field = std::decay_t<decltype(value)>;
    bool finite = true;
    if constexpr (std::is_same_v<Field, double>) finite = std::isfinite(value);
    if constexpr (std::is_same_v<Field, std::optional<double>>) {
      finite = !value || std::isfinite(*value);
    }
    if (!finite) refuse(ErrorCode::InvalidArgument, field, "is not a finite number");
  });
}

// At least `low`.
void require_least(std::initializer_list<std::pair<std::string_view, double>> values, double low) {
  for (const auto& [field, value] : values) {
    if (value >= low) continue;
    refuse(ErrorCode::InvalidArgument, field, low == 0 ? "is negative" : "must be at least 1");
  }
}

// A coefficient of a running average: 0 <= value < 1.
void require_averaging(std::initializer_list<std::pair<std::string_view, double>> values) {
  for (const auto& [field, value] : values) {
    if (value >= 0 && value < 1) continue;
    refuse(ErrorCode::InvalidArgument, field, "is not in the range [0, 1)");
  }
}

void require_ranges(const OptimizerConfig& c) {
  require_finite_numbers(c);
  require_least({{"lr", c.lr.value_or(0)},
                 {"min_lr", c.min_lr.value_or(0)},
                 {"decoupled_lr", c.decoupled_lr.value_or(0)},
                 {"decoupled_min_lr", c.decoupled_min_lr.value_or(0)},
                 {"weight_decay", c.weight_decay},
                 {"adam_eps", c.adam_eps},
                 {"adaptive_muon_eps", c.adaptive_muon_eps},
                 {"clip_grad", c.clip_grad},
                 {"optimizer_offload_fraction", c.optimizer_offload_fraction}},
                0);
  require_least(
      {{"loss_scale_window", c.loss_scale_window},
       {"hysteresis", static_cast<double>(c.hysteresis)},
       {"muon_num_ns_steps", static_cast<double>(c.muon_num_ns_steps)},
       {"soap_precondition_frequency", static_cast<double>(c.soap_precondition_frequency)}},
      1);
  require_averaging({{"adam_beta1", c.adam_beta1},
                     {"adam_beta2", c.adam_beta2},
                     {"sgd_momentum", c.sgd_momentum},
                     {"muon_momentum", c.muon_momentum},
                     {"lion_beta1", c.lion_beta1},
                     {"lion_beta2", c.lion_beta2},
                     {"soap_shampoo_beta", c.soap_shampoo_beta},
                     {"adaptive_muon_beta2", c.adaptive_muon_beta2}});
}

void require_sense(const OptimizerConfig& c) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const bool is_weight_dtype = c.params_dtype == DType::Float32 ||
                               c.params_dtype == DType::BFloat16 ||
                               c.params_dtype == DType::Float16;
  const std::string_view scalar = c.muon_scalar_optimizer;
  enforce(
      {{!is_known(c.optimizer), "optimizer",
        "is none of adam, sgd, muon, lion, soap, adaptive_muon"},
       {scalar != "adam" && scalar != "lion", "muon_scalar_optimizer", "is neither adam nor lion"},
       {c.min_lr.value_or(0) > c.lr.value_or(kMost), "min_lr", "is greater than lr"},
       {c.decoupled_min_lr && !c.decoupled_lr, "decoupled_min_lr",
        "has no effect without decoupled_lr"},
       {c.decoupled_min_lr.value_or(0) > c.decoupled_lr.value_or(kMost), "decoupled_min_lr",
        "is greater than decoupled_lr"},
       {c.fp16 && c.bf16, "bf16", "cannot be set together with fp16"},
       {!is_weight_dtype, "params_dtype", "is none of float32, bfloat16, float16"},
       {c.loss_scale.value_or(1) <= 0, "loss_scale", "is not positive"},
       {c.initial_loss_scale <= 0, "initial_loss_scale", "is not positive"},
       {c.min_loss_scale <= 0, "min_loss_scale", "is not positive"},
       {c.optimizer_offload_fraction > 1, "optimizer_offload_fraction", "is greater than 1"}},
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

// What exists in the reference and not here. A field that only tunes something refused here
// (pin_cpu_grads, lion_beta1, initial_loss_scale, ...) needs no row of its own.
void require_supported(const OptimizerConfig& c) {
  enforce(
      {{c.optimizer != "adam" && c.optimizer != "muon", "optimizer",
        "this optimizer is not implemented; adam and muon are"},
       {is_emerging(c.optimizer) && c.muon_scalar_optimizer != "adam", "muon_scalar_optimizer",
        "only adam is implemented beside muon"},
       {c.fp16, "fp16", "fp16 training is not implemented"},
       {c.loss_scale.has_value(), "loss_scale", "loss scaling is not implemented"},
       {c.use_precision_aware_optimizer, "use_precision_aware_optimizer",
        "masters and states of lower precision are not implemented"},
       {c.fp8_recipe.has_value(), "fp8_recipe", "fp8 parameters are not implemented"},
       {c.reuse_grad_buf_for_mxfp8_param_ag, "reuse_grad_buf_for_mxfp8_param_ag",
        "fp8 parameters are not implemented"},
       {c.muon_tp_mode != MuonTpMode::Blockwise, "muon_tp_mode",
        "tensor parallel Newton-Schulz is not implemented; blockwise is"},
       {c.use_distributed_optimizer, "use_distributed_optimizer",
        "sharding by element ranges is not implemented"},
       {c.overlap_param_gather, "overlap_param_gather", "overlapped gathering is not implemented"},
       {c.overlap_param_gather_with_optimizer_step, "overlap_param_gather_with_optimizer_step",
        "overlapped gathering is not implemented"},
       {c.optimizer_cpu_offload, "optimizer_cpu_offload", "CPU offload is not implemented"},
       {c.use_torch_optimizer_for_cpu_offload, "use_torch_optimizer_for_cpu_offload",
        "CPU offload is not implemented"},
       {c.overlap_cpu_optimizer_d2h_h2d, "overlap_cpu_optimizer_d2h_h2d",
        "CPU offload is not implemented"},
       {c.timers != nullptr, "timers", "timers are not implemented"},
       {!c.config_logger_dir.empty(), "config_logger_dir",
        "the library writes no log; to_json() has the configuration"},
       {c.optimizer_cuda_graph, "optimizer_cuda_graph", "CUDA graphs are not implemented"}},
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
  require_supported(*this);
}

// April 2026: __post_init__, the factory (get_megatron_optimizer) and the layer-wise wrapper.
void OptimizerConfig::validate(ReferenceRules) const {
  require_plain_precision(*this);
  const bool by_factory =
      optimizer == "adam" || optimizer == "sgd" || optimizer == "muon" || optimizer == "soap";
  enforce(
      {{use_precision_aware_optimizer && optimizer != "adam", "use_precision_aware_optimizer",
        "the reference allows it with adam only"},
       {use_precision_aware_optimizer && !use_distributed_optimizer,
        "use_precision_aware_optimizer", "the reference needs use_distributed_optimizer for it"},
       {!by_factory, "optimizer", "the reference's factory knows adam, sgd, muon and soap"},
       {is_emerging(optimizer) && fp16, "fp16",
        "the reference has no emerging optimizer with fp16"},
       {is_emerging(optimizer) && use_layer_wise_distributed_optimizer && !bf16, "bf16",
        "the reference's layer-wise optimizer runs with bf16 only"},
       {is_emerging(optimizer) && muon_scalar_optimizer != "adam", "muon_scalar_optimizer",
        "the reference ignores it and uses adam"},
       {optimizer_cpu_offload && !decoupled_weight_decay, "optimizer_cpu_offload",
        "the reference needs decoupled_weight_decay for it"}},
      ErrorCode::Unsupported);
}

}  // namespace optim
