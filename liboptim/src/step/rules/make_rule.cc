#include <ATen/ops/zeros_like.h>

#include <ckpt/error.h>
#include <optim/update_rule.h>
#include <string>

#include "step/rules/adam.h"
#include "step/rules/lion.h"
#include "step/rules/muon.h"
#include "step/rules/sgd.h"

namespace optim {
namespace {

struct RuleMaker {
  std::unique_ptr<UpdateRule> operator()(const AdamRule& config) const { return make_adam(config); }
  std::unique_ptr<UpdateRule> operator()(const MuonRule& config) const { return make_muon(config); }
  std::unique_ptr<UpdateRule> operator()(const SgdRule& config) const { return make_sgd(config); }
  std::unique_ptr<UpdateRule> operator()(const LionRule& config) const { return make_lion(config); }
};

double number(const OverrideValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "an override of eps is not a number");
}

AdamRule adam_rule(const ParamGroup& group, const OptimizerConfig& config) {
  AdamRule rule;
  rule.beta1 = config.adam_beta1;
  rule.beta2 = config.adam_beta2;
  rule.eps = config.adam_eps;
  if (const auto eps = group.others.find("eps"); eps != group.others.end()) {
    rule.eps = number(eps->second);
  }
  rule.decoupled_weight_decay = config.decoupled_weight_decay;
  return rule;
}

MuonRule muon_rule(const OptimizerConfig& config, const std::optional<QkvSplit>& qkv_split) {
  if (config.muon_tp_mode != MuonTpMode::Blockwise) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "muon_tp_mode"},
                      "Muon's tensor parallel mode '" + std::string(name(config.muon_tp_mode)) +
                          "' is not supported, only 'blockwise'");
  }
  MuonRule rule;
  rule.momentum = config.muon_momentum;
  rule.nesterov = config.muon_nesterov;
  rule.newton_schulz.steps = config.muon_num_ns_steps;
  rule.newton_schulz.coefficients = config.muon_coefficient_type;
  rule.newton_schulz.precision = config.muon_fp32_matmul_prec;
  rule.scale_mode = config.muon_scale_mode;
  rule.extra_scale_factor = config.muon_extra_scale_factor;
  if (config.muon_split_qkv) rule.qkv_split = qkv_split;
  return rule;
}

}  // namespace

UpdateRule::~UpdateRule() = default;

void UpdateRule::init_state(const at::Tensor& param, ParamState& state) const {
  for (const std::string_view name : state_names()) {
    at::Tensor& tensor = state[std::string(name)];
    if (!tensor.defined()) tensor = at::zeros_like(param);
  }
}

void UpdateRule::update(const UpdateTarget& target, const StepContext& context) const {
  const UpdateItem item = {target, context};
  update_all({&item, 1});
}

std::unique_ptr<UpdateRule> make_rule(const RuleConfig& config) {
  return std::visit(RuleMaker{}, config);
}

RuleConfig rule_of_group(const ParamGroup& group, const OptimizerConfig& config,
                         const std::optional<QkvSplit>& qkv_split) {
  if (group.updated_by == "adam") return adam_rule(group, config);
  if (group.updated_by == "muon") return muon_rule(config, qkv_split);
  if (group.updated_by == "sgd") return SgdRule{config.sgd_momentum};
  if (group.updated_by == "lion") return LionRule{config.lion_beta1, config.lion_beta2};
  throw ckpt::Error(
      ckpt::ErrorCode::Unsupported, {.file = {}, .key = "optimizer"},
      "the optimizer '" + group.updated_by + "' is not supported, only adam, sgd, lion and muon");
}

}  // namespace optim
