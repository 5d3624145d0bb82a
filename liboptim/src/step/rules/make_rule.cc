// The half of the table of rules that needs LibTorch: what makes each rule, by its name.
#include <ATen/ops/eye.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <string>
#include <utility>

#include "rules/refuse_key.h"
#include "step/rules/makers.h"

namespace optim {
namespace {

struct Maker {
  std::string_view name;
  std::unique_ptr<UpdateRule> (*make)(const RuleConfig& config);
};
constexpr Maker kMakers[] = {{AdamRule::kName, make_adam},
                             {MuonRule::kName, make_muon},
                             {SgdRule::kName, make_sgd},
                             {LionRule::kName, make_lion},
                             {AdaptiveMuonRule::kName, make_adaptive_muon},
                             {SoapRule::kName, make_soap}};

at::Tensor initial_state(const StateSpec& spec, const at::TensorOptions& options) {
  switch (spec.initial) {
    case InitialState::Zeros: return at::zeros(spec.shape, options);
    case InitialState::Identity: return at::eye(spec.shape[0], spec.shape[1], options);
  }
  refuse_key(std::string(spec.name), "the state's row has an unknown initial value");
}

}  // namespace

UpdateRule::UpdateRule(RuleConfig config) : config_(std::move(config)) {
  constexpr int64_t kAny[] = {1, 1};  // names do not depend on the shape
  for (const StateSpec& state : states_of(config_, ParamShape(kAny)))
    state_names_.push_back(state.name);
}

UpdateRule::~UpdateRule() = default;

void UpdateRule::check(const UpdateTarget& /*target*/) const {}

void UpdateRule::init_state(const at::Tensor& param, ParamState& state) const {
  const bool is_complete = std::ranges::all_of(state_names_, [&](std::string_view name) {
    const auto found = state.find(std::string(name));
    return found != state.end() && found->second.defined();
  });
  if (is_complete) return;
  const at::IntArrayRef sizes = param.sizes();
  for (const StateSpec& spec : states_of(config_, {sizes.data(), sizes.size()})) {
    at::Tensor& tensor = state[std::string(spec.name)];
    if (!tensor.defined()) tensor = initial_state(spec, param.options().dtype(at::kFloat));
  }
}

void UpdateRule::update(const UpdateTarget& target, const StepContext& context) const {
  check(target);
  const UpdateItem item = {target, context};
  update_all({&item, 1});
}

std::unique_ptr<UpdateRule> make_rule(const RuleConfig& config) {
  const RuleDescription& row = rule_named(config.name());
  if (row.check != nullptr) row.check(config);
  if (row.make != nullptr) return row.make(config);
  return std::ranges::find(kMakers, row.name, &Maker::name)->make(config);
}

at::Tensor effective_grad(const UpdateItem& item) {
  const at::Tensor grad = item.target.grad.to(at::kFloat);
  return item.context.grad_scale == 1 ? grad : at::mul(grad, item.context.grad_scale);
}

void apply_decay(WeightDecayMethod method, const UpdateItem& item, at::Tensor& grad) {
  const double wd = item.context.weight_decay;
  const double lr = item.context.lr;
  if (wd == 0) return;
  at::Tensor param = item.target.param;
  switch (method) {
    case WeightDecayMethod::Decoupled: param.add_(param, -wd * lr); break;
    case WeightDecayMethod::Independent: param.add_(param, -wd); break;
    case WeightDecayMethod::L2: grad.add_(param, wd); break;
    case WeightDecayMethod::Palm: param.add_(param, -wd * lr * lr); break;
  }
}

void write_rounded(const UpdateTarget& target) {
  if (target.rounded.defined()) at::Tensor(target.rounded).copy_(target.param);
}

}  // namespace optim
