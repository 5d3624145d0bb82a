#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <optim/layout_export.h>
#include <optim/rule_config.h>

// The settings of SOAP and adaptive Muon, as two releases of emerging_optimizers compute them.
// Defaults are those of its constructors.
namespace optim {

struct AdaptiveMuonRule {
  static constexpr std::string_view kName = "adaptive_muon";
  MuonRule muon = {};
  Moment2Method moment2_method = Moment2Method::AdaMuon;
  double beta2 = 0.95, eps = 1e-8;
  // V0_2: the scaled direction is divided by the second moment; without namo. V0_3: the direction
  // is, then scaled; normuon keeps the direction's norm.
  EmergingOptimizers era = EmergingOptimizers::V0_3;
  // Megatron's own class (core 0.20-dev) over 0.3 scales before and after. V0_3 only.
  bool scales_twice = false;
};

// How many steps lie between two refreshes of SOAP's basis (0.2), by the number of steps done.
struct PreconditionSchedule {
  enum class Kind : uint8_t { Constant, Linear, Cosine, Steps };
  Kind kind = Kind::Constant;
  int64_t frequency = 1;  // Constant
  // Of the others, as the classes of emerging_optimizers.utils.precondition_schedules have them.
  int64_t min_frequency = 1, max_frequency = 100;
  int64_t transition_steps = 10000;                     // Linear, Cosine
  int64_t start_step = 0;                               // min_frequency before it
  std::vector<std::pair<int64_t, int64_t>> steps = {};  // Steps: from this step on, this frequency
};
// At least 1 where the schedule is valid.
OPTIM_LAYOUT_EXPORT int64_t frequency_at(const PreconditionSchedule& schedule, int64_t step);

struct SoapRule {
  static constexpr std::string_view kName = "soap";
  double beta1 = 0.9, beta2 = 0.95;  // of the Adam in the basis
  double shampoo_beta = 0.95;        // of the factors L and R
  double eps = 1e-8;
  WeightDecayMethod weight_decay_method = WeightDecayMethod::Decoupled;
  bool nesterov = false;
  bool correct_bias = true;
  std::optional<bool> correct_shampoo_beta_bias = {};  // none: as correct_bias
  // On a CPU High is Highest; Medium rounds the factors of products to bf16.
  MatmulPrecision fp32_matmul_prec = MatmulPrecision::High;
  MatmulPrecision qr_fp32_matmul_prec = MatmulPrecision::High;
  bool use_eigh = false;         // else power iteration with QR; the first basis is eigh's
  int64_t power_iter_steps = 1;  // at least 1
  double max_update_rms = 0;     // 0: no clipping
  bool use_kl_shampoo = false;
  EmergingOptimizers era = EmergingOptimizers::V0_3;
  // V0_2 only; 0.3 refreshes the basis in every step.
  PreconditionSchedule precondition_frequency = {};
  int64_t adam_warmup_steps = 0;  // plain Adam before
  bool use_adaptive_criteria = false;
  double adaptive_update_tolerance = 1e-7;
};

}  // namespace optim
