#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/dtype.h>
#include <optim/layout_export.h>
#include <optim/timers.h>
#include <optim/update_modes.h>

namespace optim {

// Asks validate() to refuse what the reference refuses, even where Shardwise can do it.
struct ReferenceRules {};

// Megatron-Core's core.optimizer.optimizer_config.OptimizerConfig: its fields, names and defaults.
// A plain value; std::nullopt is the reference's None.
struct OPTIM_LAYOUT_EXPORT OptimizerConfig {
  // --- General. Rates and coefficients have no unit.
  std::optional<double> lr = {};                // learning rate before warmup and decay
  std::optional<double> min_lr = {};            // the schedule never goes below it
  std::optional<double> decoupled_lr = {};      // separate rate of the input and output layer
  std::optional<double> decoupled_min_lr = {};  // its lower bound
  double weight_decay = 0.01;                   // a group's decay is this times its wd_mult
  bool apply_wd_to_qk_layernorm = false;        // decay the q/k layer norms although they are 1-D

  // --- Precision
  std::optional<std::string> fp8_recipe = {};  // "delayed", "mxfp8", ... when parameters are fp8
  bool fp16 = false;                           // fp16 parameters with fp32 masters
  bool bf16 = false;                           // bf16 parameters with fp32 masters
  bool reuse_grad_buf_for_mxfp8_param_ag = false;   // gather mxfp8 parameters through it
  ckpt::DType params_dtype = ckpt::DType::Float32;  // of the weights when they are created
  bool use_precision_aware_optimizer = false;       // the five fields below take effect
  // Masters of bf16 parameters: the parameter and a 16-bit remainder, where main_params_dtype is
  // float32. Exact, 2 bytes less per element.
  bool store_param_remainders = true;
  ckpt::DType main_grads_dtype = ckpt::DType::Float32;   // float32 or bfloat16
  ckpt::DType main_params_dtype = ckpt::DType::Float32;  // float32, or float16 with a scale
  // Of the first moment (momentum) and the second: float32, bfloat16, or float16 and fp8 (uint8 or
  // float8_e4m3fn) with a scale per tensor.
  ckpt::DType exp_avg_dtype = ckpt::DType::Float32;
  ckpt::DType exp_avg_sq_dtype = ckpt::DType::Float32;
  std::string optimizer = "adam";  // adam, sgd, muon, lion, soap or adaptive_muon

  // --- Loss scaling
  std::optional<double> loss_scale =
      std::nullopt;                        // static scale; None: dynamic with fp16, else no scaling
  double initial_loss_scale = 4294967296;  // 2^32
  double min_loss_scale = 1.0;             // the dynamic scale never goes below it
  double loss_scale_window = 1000;         // clean steps before the scale grows
  int64_t hysteresis = 2;                  // overflows before the scale shrinks

  // --- Adam, SGD
  double adam_beta1 = 0.9;             // running average of the gradient
  double adam_beta2 = 0.999;           // running average of its square
  double adam_eps = 1e-08;             // added to the denominator
  bool decoupled_weight_decay = true;  // AdamW; false: decay is added to the gradient
  double sgd_momentum = 0.9;

  // --- Muon
  double muon_momentum = 0.95;
  bool muon_split_qkv = true;  // orthogonalise query, key and value blocks apart
  bool muon_nesterov = false;
  MuonScaleMode muon_scale_mode = MuonScaleMode::Spectral;
  MatmulPrecision muon_fp32_matmul_prec = MatmulPrecision::Medium;  // Medium: bf16 Newton-Schulz
  NsCoefficients muon_coefficient_type = NsCoefficients::Quintic;
  int64_t muon_num_ns_steps = 5;  // Newton-Schulz iterations, 1 to kNewtonSchulzStepsMax
  MuonTpMode muon_tp_mode = MuonTpMode::Blockwise;  // for weights split over tensor parallel ranks
  double muon_extra_scale_factor = 1.0;             // times the update
  std::string muon_scalar_optimizer = "adam";  // for embeddings, biases and norms: adam or lion

  // --- Lion, SOAP, adaptive Muon
  double lion_beta1 = 0.95, lion_beta2 = 0.98;
  double soap_shampoo_beta = 0.95;
  int64_t soap_precondition_frequency = 1;  // steps between two refreshes of the basis
  bool soap_use_kl_shampoo = true;
  Moment2Method adaptive_muon_moment2_method = Moment2Method::AdaMuon;
  double adaptive_muon_beta2 = 0.95, adaptive_muon_eps = 1e-08;

  // --- Sharding and communication
  bool use_distributed_optimizer = false;             // ZeRO-1: state sharded by element ranges
  bool use_layer_wise_distributed_optimizer = false;  // state sharded by whole parameters
  bool overlap_param_gather = false;                  // gather parameters behind other work
  bool overlap_param_gather_with_optimizer_step = false;

  // --- Offload to the CPU of what lies on a GPU. Changes no bit: docs/optimizer.md, section 9
  bool optimizer_cpu_offload = false;  // masters and moments are fp32 then, as in the reference
  double optimizer_offload_fraction = 0.0;  // 0 to 1: of the elements of adam, sgd and lion
  bool use_torch_optimizer_for_cpu_offload = false;  // no effect, as in the reference
  bool overlap_cpu_optimizer_d2h_h2d = false;        // update parameters while others travel
  bool pin_cpu_grads = true, pin_cpu_params = true;  // page-lock what travels

  // --- Miscellaneous
  double clip_grad = 1.0;              // largest global L2 norm of the gradient; 0: no clipping
  bool log_num_zeros_in_grad = false;  // count zeros in step()
  bool barrier_with_L1_time = false;   // a barrier before level-1 timers; no effect without timers
  TimerFn timers = nullptr;            // called around the sections of step()
  std::string config_logger_dir = {};  // dump the configuration there
  bool optimizer_cuda_graph = false;   // replay step() as a CUDA graph

  bool use_precision_aware_optimizer_no_fp8_or_ds_fp8() const;  // derived, as in the reference

  // Throws Error(InvalidArgument) for a value that makes no sense and Error(Unsupported) for one
  // that this library cannot do; where().key is the field. No field is silently ignored.
  void validate() const;
  void validate(ReferenceRules) const;  // only the reference's own checks
};

using AdamOptimizerConfig = OptimizerConfig;
using SGDOptimizerConfig = OptimizerConfig;  // the same type, as in the reference

// One JSON object with every field but `timers`, dtypes as "bfloat16", enumerators as name() has
// them. Reading: absent fields keep their defaults; an unknown field, or a value of the wrong
// type, throws Error(InvalidArgument) that names it. Writing then reading gives the same value.
OPTIM_LAYOUT_EXPORT std::string to_json(const OptimizerConfig& config);
OPTIM_LAYOUT_EXPORT OptimizerConfig optimizer_config_from_json(std::string_view json);

}  // namespace optim
