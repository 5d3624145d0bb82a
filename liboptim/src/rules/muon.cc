// Muon's row.
#include <algorithm>
#include <cmath>

#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace rows {
namespace {

using Content = GroupField::Content;

std::vector<GroupField> muon_fields(const RuleConfig&) {
  return {{"momentum"}, {"weight_decay", Content::WeightDecay}};
}

std::vector<StateSpec> muon_states(const RuleConfig&, ParamShape shape) {
  return {moment("momentum_buffer", StateSpec::Kind::FirstMoment, shape)};
}

TraceBound muon_bound(const RuleConfig& config) {
  const NewtonSchulzOptions& products = config.get_if<MuonRule>()->newton_schulz;
  if (products.precision == MatmulPrecision::Medium) return {.max_scaled = 5e-4};
  const bool is_cans = products.coefficients == NsCoefficients::Cans;
  return {.max_scaled = is_cans ? 4e-6 : 1e-6};
}

}  // namespace

StateSpec moment(std::string_view name, StateSpec::Kind kind, ParamShape shape) {
  return {.name = name, .kind = kind, .shape = {shape.begin(), shape.end()}};
}

std::vector<Setting> muon_settings(MuonRule& rule) {
  using enum SettingRange;
  NewtonSchulzOptions& products = rule.newton_schulz;
  return {{"momentum", &rule.momentum, Averaging, "muon_momentum", "momentum"},
          {"nesterov", &rule.nesterov, Any, "muon_nesterov"},
          {"weight_decay_method", choice(rule.weight_decay_method)},
          {"num_ns_steps", &products.steps, AtLeastOne, "muon_num_ns_steps"},
          {"coefficient_type", choice(products.coefficients), Any, "muon_coefficient_type"},
          {"custom_coefficients", &products.custom},
          {"fp32_matmul_prec", choice(products.precision), Any, "muon_fp32_matmul_prec"},
          {"scale_mode", choice(rule.scale_mode), Any, "muon_scale_mode"},
          {"extra_scale_factor", &rule.extra_scale_factor, Any, "muon_extra_scale_factor"},
          {"qkv_split", &rule.qkv_split, Any, "muon_split_qkv"}};
}

void check_decay(WeightDecayMethod method, EmergingOptimizers era) {
  if (method != WeightDecayMethod::Palm || era != EmergingOptimizers::V0_2) return;
  refuse_key("weight_decay_method", "emerging_optimizers 0.2 does not have 'palm'; 0.3 has it",
             ckpt::ErrorCode::Unsupported);
}

double matrix_cost(ParamShape shape) {
  const auto [low, high] = std::minmax(shape[0], shape[1]);
  return static_cast<double>(high) * static_cast<double>(low) * static_cast<double>(low);
}

RuleDescription muon() {
  return {.name = MuonRule::kName,
          .is_emerging = true,
          .needs_matrix = true,
          .has_tp_modes = true,
          .in_reference = true,
          .defaults = defaults<MuonRule>,
          .settings = settings<MuonRule, muon_settings>,
          .fields = muon_fields,
          .states = muon_states,
          .bound = muon_bound,
          .cost = matrix_cost};
}

}  // namespace rows

double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns) {
  const auto out = static_cast<double>(rows);
  const auto in = static_cast<double>(columns);
  switch (mode) {
    case MuonScaleMode::Spectral: return std::sqrt(std::max(out, in));
    case MuonScaleMode::UnitRmsNorm: return std::sqrt(out / in);
    case MuonScaleMode::ShapeScaling: return std::sqrt(std::max(1.0, out / in));
  }
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "unknown Muon scale mode");
}

}  // namespace optim
