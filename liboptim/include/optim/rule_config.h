#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include <optim/checkpoint_args.h>
#include <optim/export.h>
#include <optim/newton_schulz.h>
#include <optim/param_group.h>

// The update rules and their coefficients, as values.
namespace optim {

// p: parameter, g: gradient, lr: learning rate, wd: weight decay. Applied before anything else,
// not at all for wd = 0.
enum class WeightDecayMethod : uint8_t {
  Decoupled,    // p -= lr wd p
  Independent,  // p -= wd p
  L2,           // g += wd p; Muon changes the caller's gradient, as the reference does
  Palm,         // p -= lr^2 wd p
};

// Two ways of rounding the same formula.
enum class AdamArithmetic : uint8_t {
  Torch,      // torch.optim.Adam and AdamW, single tensor, on the CPU
  FusedAdam,  // TransformerEngine's and Apex's FusedAdam: decay and update are added up first
};

struct AdamRule {
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled_weight_decay = true;  // AdamW; false: L2
  bool bias_correction = true;         // FusedAdam only; torch always corrects
  AdamArithmetic arithmetic = AdamArithmetic::Torch;
};

// torch.optim.SGD: g += wd p; b = momentum b + g; p -= lr b. Without momentum it has no state.
struct SgdRule {
  double momentum = 0.9;
};

// u = sign(lerp(m, g, 1 - beta1)); m = lerp(m, g, 1 - beta2); p -= lr u. sign(0) = 0.
struct LionRule {
  double beta1 = 0.95, beta2 = 0.98;
  WeightDecayMethod weight_decay_method = WeightDecayMethod::Decoupled;
};

struct MuonRule {
  double momentum = 0.95;  // of an exponential moving average of the gradient
  bool nesterov = false;
  WeightDecayMethod weight_decay_method = WeightDecayMethod::Decoupled;
  NewtonSchulzOptions newton_schulz = {};
  MuonScaleMode scale_mode = MuonScaleMode::Spectral;
  double extra_scale_factor = 1.0;
  std::optional<QkvSplit> qkv_split =
      {};  // how parameters with is_qkv are split; none: they are not
};

using RuleConfig = std::variant<AdamRule, MuonRule, SgdRule, LionRule>;

// The rule of a group: what get_param_groups() says that updates it, with the configuration's
// coefficients and the group's overrides (eps). `qkv_split` is needed where Muon splits.
// Throws Error(Unsupported) for soap and adaptive_muon, and for Muon's duplicated and distributed
// tensor parallel modes.
OPTIM_EXPORT RuleConfig rule_of_group(const ParamGroup& group, const OptimizerConfig& config,
                                      const std::optional<QkvSplit>& qkv_split);

// Muon's factor of an orthogonalised matrix with this many rows (out) and columns (in).
OPTIM_EXPORT double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns);

}  // namespace optim
