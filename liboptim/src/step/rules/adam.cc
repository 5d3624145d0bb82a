#include "step/rules/adam.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <array>
#include <cmath>

namespace optim {
namespace {

// Operations, their order and their scalars (computed in double, rounded to fp32 by the operation)
// are those of torch.optim, so that the results are its results bit for bit on the same machine.
class Adam final : public UpdateRule {
 public:
  explicit Adam(const AdamRule& config) : config_(config) {}

  std::span<const std::string_view> state_names() const override {
    static constexpr std::array<std::string_view, 2> kNames = {"exp_avg", "exp_avg_sq"};
    return kNames;
  }

  void update(const UpdateTarget& target, const StepContext& context) const override {
    init_state(target.param, *target.state);
    if (config_.arithmetic == AdamArithmetic::Torch) {
      update_as_torch(target, context);
    } else {
      update_as_fused(target, context);
    }
  }

 private:
  void update_as_torch(const UpdateTarget& target, const StepContext& context) const {
    at::Tensor param = target.param;
    at::Tensor grad = target.grad;
    if (context.weight_decay != 0) {
      if (config_.decoupled_weight_decay) {
        param.mul_(1 - context.lr * context.weight_decay);
      } else {
        grad = at::add(grad, param, context.weight_decay);
      }
    }
    at::Tensor& exp_avg = target.state->at("exp_avg");
    at::Tensor& exp_avg_sq = target.state->at("exp_avg_sq");
    exp_avg.lerp_(grad, 1 - config_.beta1);
    exp_avg_sq.mul_(config_.beta2).addcmul_(grad, grad, 1 - config_.beta2);
    const auto [correction1, correction2] = bias_corrections(context.step);
    const at::Tensor denominator =
        at::sqrt(exp_avg_sq).div_(std::pow(correction2, 0.5)).add_(config_.eps);
    param.addcdiv_(exp_avg, denominator, -(context.lr / correction1));
  }

  // update = (m / c1) / (sqrt(v / c2) + eps) + wd p; p -= lr update
  void update_as_fused(const UpdateTarget& target, const StepContext& context) const {
    at::Tensor param = target.param;
    at::Tensor grad = target.grad;
    if (context.weight_decay != 0 && !config_.decoupled_weight_decay) {
      grad = at::add(grad, param, context.weight_decay);
    }
    at::Tensor& exp_avg = target.state->at("exp_avg");
    at::Tensor& exp_avg_sq = target.state->at("exp_avg_sq");
    exp_avg.mul_(config_.beta1).add_(grad, 1 - config_.beta1);
    exp_avg_sq.mul_(config_.beta2).addcmul_(grad, grad, 1 - config_.beta2);
    const auto [correction1, correction2] = bias_corrections(context.step);
    const at::Tensor denominator = at::div(exp_avg_sq, correction2).sqrt_().add_(config_.eps);
    at::Tensor update = at::div(exp_avg, correction1).div_(denominator);
    if (context.weight_decay != 0 && config_.decoupled_weight_decay) {
      update.add_(at::mul(param, context.weight_decay));
    }
    param.add_(update, -context.lr);
  }

  struct Corrections {
    double first = 1, second = 1;
  };
  Corrections bias_corrections(int64_t step) const {
    if (!config_.bias_correction) return {};
    const auto exponent = static_cast<double>(step);
    return {1 - std::pow(config_.beta1, exponent), 1 - std::pow(config_.beta2, exponent)};
  }

  AdamRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const AdamRule& config) {
  return std::make_unique<Adam>(config);
}

}  // namespace optim
