// SGD and Lion: element by element, in torch's operations.
#include "step/rules/makers.h"

#include <ATen/ops/add.h>
#include <ATen/ops/lerp.h>

#include <optim/update_rule.h>

#include "step/rules/chunks.h"

namespace optim {
namespace {

// Operations and their order are those of torch.optim.SGD.
void update_chunk(const SgdRule& rule, const UpdateItem& item) {
  at::Tensor param = item.target.param;
  at::Tensor direction = effective_grad(item);
  if (item.context.weight_decay != 0) {
    direction = at::add(direction, param, item.context.weight_decay);
  }
  if (rule.momentum != 0) {
    at::Tensor& momentum = item.target.state->at("momentum_buffer");
    momentum.mul_(rule.momentum).add_(direction);
    direction = momentum;
  }
  param.add_(direction, -item.context.lr);
}

void update_chunk(const LionRule& rule, const UpdateItem& item) {
  at::Tensor grad = effective_grad(item);
  apply_decay(rule.weight_decay_method, item, grad);
  at::Tensor& exp_avg = item.target.state->at("exp_avg");
  const at::Tensor update = at::lerp(exp_avg, grad, 1 - rule.beta1).sign_();
  exp_avg.lerp_(grad, 1 - rule.beta2);
  at::Tensor(item.target.param).add_(update, -item.context.lr);
}

template <class Rule>
class ByElement final : public UpdateRule {
 public:
  explicit ByElement(const RuleConfig& config)
      : UpdateRule(config), rule_(*config.get_if<Rule>()) {}

  void update_all(std::span<const UpdateItem> items) const override {
    for (const UpdateItem& item : items) {
      init_state(item.target.param, *item.target.state);
      update_chunks(item, [this](const UpdateItem& chunk) {
        update_chunk(rule_, chunk);
        write_rounded(chunk.target);
      });
    }
  }

 private:
  Rule rule_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const RuleConfig& config) {
  return std::make_unique<ByElement<SgdRule>>(config);
}

std::unique_ptr<UpdateRule> make_lion(const RuleConfig& config) {
  return std::make_unique<ByElement<LionRule>>(config);
}

}  // namespace optim
