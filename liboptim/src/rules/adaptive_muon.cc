// Adaptive Muon's row.
#include <utility>

#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim::rows {
namespace {

using Content = GroupField::Content;
using Kind = StateSpec::Kind;
using enum SettingRange;

std::vector<Setting> adaptive_muon_settings(AdaptiveMuonRule& rule) {
  std::vector<Setting> all = muon_settings(rule.muon);
  all.insert(all.end(),
             {{"moment2_method", choice(rule.moment2_method), Any, "adaptive_muon_moment2_method"},
              {"beta2", &rule.beta2, Averaging, "adaptive_muon_beta2", "beta2"},
              {"eps", &rule.eps, AtLeastZero, "adaptive_muon_eps", "eps"},
              {"era", choice(rule.era)},
              {"scales_twice", &rule.scales_twice}});
  return all;
}

std::vector<GroupField> adaptive_muon_fields(const RuleConfig&) {
  return {{"momentum"}, {"weight_decay", Content::WeightDecay}, {"beta2"}, {"eps"}};
}

// normuon keeps one mean per row of a matrix that is not wider than tall, else one per column.
std::vector<int64_t> moment2_shape(Moment2Method method, ParamShape shape) {
  if (method == Moment2Method::Namo) return {1};
  if (method == Moment2Method::AdaMuon || shape.size() != 2) return {shape.begin(), shape.end()};
  if (shape[0] >= shape[1]) return {shape[0], 1};
  return {1, shape[1]};
}

std::vector<StateSpec> adaptive_muon_states(const RuleConfig& config, ParamShape shape) {
  const Moment2Method method = config.get_if<AdaptiveMuonRule>()->moment2_method;
  StateSpec second = moment("moment2_buffer", Kind::SecondMoment, moment2_shape(method, shape));
  second.own_shape = true;
  return {moment("momentum_buffer", Kind::FirstMoment, shape), std::move(second)};
}

void check_adaptive_muon(const RuleConfig& config) {
  const auto& rule = *config.get_if<AdaptiveMuonRule>();
  constexpr std::string_view kMethod = "adaptive_muon_moment2_method";
  check_decay(rule.muon.weight_decay_method, rule.era);
  if (rule.moment2_method != Moment2Method::Namo) return;
  if (rule.era == EmergingOptimizers::V0_2) {
    refuse_key(kMethod, "emerging_optimizers 0.2 does not have 'namo'; 0.3 has it",
               ckpt::ErrorCode::Unsupported);
  }
  if (rule.muon.weight_decay_method == WeightDecayMethod::L2) {
    refuse_key(kMethod, "'namo' contradicts the weight decay method 'l2'");
  }
}

TraceBound adaptive_muon_bound(const RuleConfig& config) {
  const MatmulPrecision precision = config.get_if<AdaptiveMuonRule>()->muon.newton_schulz.precision;
  return {.max_scaled = precision == MatmulPrecision::Medium ? 5e-2 : 5e-5};
}

}  // namespace

RuleDescription adaptive_muon() {
  return {.name = AdaptiveMuonRule::kName,
          .is_emerging = true,
          .needs_matrix = true,
          .has_tp_modes = true,
          .trace = "emerging_optimizers AdaptiveMuon",
          .defaults = defaults<AdaptiveMuonRule>,
          .settings = settings<AdaptiveMuonRule, adaptive_muon_settings>,
          .fields = adaptive_muon_fields,
          .states = adaptive_muon_states,
          .bound = adaptive_muon_bound,
          .cost = matrix_cost,
          .check = check_adaptive_muon};
}

}  // namespace optim::rows
