#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <optim/layout_export.h>
#include <optim/newton_schulz_options.h>
#include <optim/param_group.h>

// The update rules' settings, as values. Defaults are those of the reference's constructors.
namespace optim {

// p: parameter, g: gradient, lr: learning rate, wd: weight decay. Applied before anything else
// (SOAP: behind its factors and basis), not at all for wd = 0.
enum class WeightDecayMethod : uint8_t {
  Decoupled,    // p -= lr wd p
  Independent,  // p -= wd p
  L2,           // g += wd p; Muon changes the caller's gradient, as the reference does
  Palm,         // p -= lr^2 wd p
};

// Ways of rounding the same formula, by whose results they are (docs/optimizer.md, section 2).
enum class AdamArithmetic : uint8_t {
  Torch,      // torch.optim.Adam and AdamW, single tensor, on the CPU: the same bits
  FusedAdam,  // FusedAdam's sequence in torch's operations: decay and update are added up first
  TransformerEngine,  // the same with the scalars of TransformerEngine and Apex: betas are fp32
  Fused,              // torch.optim.Adam and AdamW with fused=True, on the CPU: the same bits
};

// Releases of emerging_optimizers that compute adaptive Muon and SOAP differently.
enum class EmergingOptimizers : uint8_t { V0_2, V0_3 };

struct AdamRule {
  static constexpr std::string_view kName = "adam";
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled_weight_decay = true;  // AdamW; false: L2
  bool bias_correction = true;         // FusedAdam and TransformerEngine; torch always corrects
  AdamArithmetic arithmetic = AdamArithmetic::Torch;
};

// torch.optim.SGD: g += wd p; b = momentum b + g; p -= lr b. Without momentum it has no state.
struct SgdRule {
  static constexpr std::string_view kName = "sgd";
  double momentum = 0.9;
};

// u = sign(lerp(m, g, 1 - beta1)); m = lerp(m, g, 1 - beta2); p -= lr u. sign(0) = 0.
struct LionRule {
  static constexpr std::string_view kName = "lion";
  double beta1 = 0.95, beta2 = 0.98;
  WeightDecayMethod weight_decay_method = WeightDecayMethod::Decoupled;
};

// Rows of one query group of a fused qkv weight, in elements: how Muon splits it.
struct QkvSplit {
  int64_t query_rows = 0, key_rows = 0, value_rows = 0;
  bool operator==(const QkvSplit&) const = default;
};

struct MuonRule {
  static constexpr std::string_view kName = "muon";
  double momentum = 0.95;  // of an exponential moving average of the gradient
  bool nesterov = false;
  WeightDecayMethod weight_decay_method = WeightDecayMethod::Decoupled;
  NewtonSchulzOptions newton_schulz = {};
  MuonScaleMode scale_mode = MuonScaleMode::Spectral;
  double extra_scale_factor = 1.0;
  std::optional<QkvSplit> qkv_split =
      {};  // how parameters with is_qkv are split; none: they are not
};

// What is called a rule's settings: a struct with the name of its row in the table of rules.
template <class T>
concept RuleSettings = requires {
  { T::kName } -> std::convertible_to<std::string_view>;
};

// Any rule's settings.
class OPTIM_LAYOUT_EXPORT RuleConfig {
 public:
  RuleConfig() : RuleConfig(AdamRule()) {}
  template <RuleSettings Settings>
  RuleConfig(Settings settings) : name_(Settings::kName), settings_(std::move(settings)) {}

  std::string_view name() const { return name_; }
  template <class Settings>
  const Settings* get_if() const {
    return std::any_cast<Settings>(&settings_);
  }
  template <class Settings>
  Settings* get_if() {
    return std::any_cast<Settings>(&settings_);
  }
  std::any& settings() { return settings_; }  // for the rule's row, which knows their type

 private:
  std::string_view name_;
  std::any settings_;
};

// The rule of a group: what get_param_groups() says that updates it, with the configuration's
// coefficients and the group's overrides (eps, momentum, ...). `qkv_split` is needed where Muon
// splits. `era`: what computed SOAP and adaptive Muon; the latter is Megatron's. Throws
// Error(Unsupported) for a rule that is not in the table and for what the era does not have.
OPTIM_LAYOUT_EXPORT RuleConfig rule_of_group(const ParamGroup& group, const OptimizerConfig& config,
                                             const std::optional<QkvSplit>& qkv_split,
                                             EmergingOptimizers era = EmergingOptimizers::V0_3);

// Muon's factor of an orthogonalised matrix with this many rows (out) and columns (in).
OPTIM_LAYOUT_EXPORT double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns);

}  // namespace optim
