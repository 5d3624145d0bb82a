// SGD and Lion: element by element, in torch's operations.
#include "step/rules/makers.h"

#include <ATen/ops/add.h>
#include <ATen/ops/lerp.h>

#include <optim/update_rule.h>

#include "step/rules/chunks.h"

namespace optim {
namespace {

// Operations and their order are those of torch.optim.SGD.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const SgdRule& config) : UpdateRule(config), config_(config) {}

  void update_all(std::span<const UpdateItem> items) const override {
    update_in_chunks(*this, items, [this](const UpdateItem& chunk) { update_one(chunk); });
  }

 private:
  void update_one(const UpdateItem& item) const {
    at::Tensor param = item.target.param;
    at::Tensor direction = effective_grad(item);
    if (item.context.weight_decay != 0) {
      direction = at::add(direction, param, item.context.weight_decay);
    }
    if (config_.momentum != 0) {
      at::Tensor& momentum = item.target.state->at("momentum_buffer");
      momentum.mul_(config_.momentum).add_(direction);
      direction = momentum;
    }
    param.add_(direction, -item.context.lr);
    write_rounded(item.target);
  }

  SgdRule config_;
};

class Lion final : public UpdateRule {
 public:
  explicit Lion(const LionRule& config) : UpdateRule(config), config_(config) {}

  void update_all(std::span<const UpdateItem> items) const override {
    update_in_chunks(*this, items, [this](const UpdateItem& chunk) { update_one(chunk); });
  }

 private:
  void update_one(const UpdateItem& item) const {
    at::Tensor grad = effective_grad(item);
    apply_decay(config_.weight_decay_method, item, grad);
    at::Tensor& exp_avg = item.target.state->at("exp_avg");
    const at::Tensor update = at::lerp(exp_avg, grad, 1 - config_.beta1).sign_();
    exp_avg.lerp_(grad, 1 - config_.beta2);
    at::Tensor(item.target.param).add_(update, -item.context.lr);
    write_rounded(item.target);
  }

  LionRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const RuleConfig& config) {
  return std::make_unique<Sgd>(*config.get_if<SgdRule>());
}

std::unique_ptr<UpdateRule> make_lion(const RuleConfig& config) {
  return std::make_unique<Lion>(*config.get_if<LionRule>());
}

}  // namespace optim
