#include "step/rules/makers.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "step/rules/adam_kernel.h"
#include "step/rules/chunks.h"
#include "step/rules/effective_grad.h"

namespace optim {
namespace {

struct Chunk {
  const UpdateItem* item = nullptr;
  AdamScalars scalars;
  int64_t begin = 0;
};

// Its results are torch.optim's bit for bit on the same machine: fused multiply-adds where ATen
// fuses, and the bits of ATen's square root, which rounds as the processor and MKL please
// (docs/decisions/0021).
class Adam final : public UpdateRule {
 public:
  explicit Adam(const AdamRule& config) : UpdateRule(config), config_(config) {}

  void update_all(std::span<const UpdateItem> items) const override {
    for (const UpdateItem& item : items) init_state(item.target.param, *item.target.state);
    if (config_.arithmetic == AdamArithmetic::Torch) {
      update_as_torch(items);
    } else {
      for (const UpdateItem& item : items) {
        update_chunks(item, [this](const UpdateItem& chunk) { update_as_fused(chunk); });
      }
    }
  }

 private:
  void update_as_torch(std::span<const UpdateItem> items) const {
    std::vector<Chunk> chunks;
    int64_t elements = 0;
    for (const UpdateItem& item : items) {
      const AdamScalars scalars = make_scalars(item.context);
      const int64_t count = item.target.param.numel();
      for (int64_t begin = 0; begin < count; begin += kChunk) {
        chunks.push_back({&item, scalars, begin});
      }
      elements += count;
    }
    const SquareRoots roots = square_roots_for(elements);
    at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
      const at::NoGradGuard no_grad;
      const SingleThread single_thread;
      std::vector<float> scratch(kChunk);
      for (int64_t i = first; i < last; ++i) {
        at::Tensor converted_grad;
        AdamSpan span = span_of(chunks[static_cast<size_t>(i)], converted_grad);
        span.scratch = scratch.data();
        adam_update(span, roots);
      }
    });
    for (const UpdateItem& item : items) {
      if (!rounds_in_loop(item.target)) write_rounded(item.target);
    }
  }

  static bool rounds_in_loop(const UpdateTarget& target) {
    return target.rounded.defined() && target.rounded.scalar_type() == at::kBFloat16;
  }

  static AdamSpan span_of(const Chunk& chunk, at::Tensor& converted_grad) {
    const UpdateTarget& target = chunk.item->target;
    AdamSpan span = {.count = std::min(kChunk, target.param.numel() - chunk.begin),
                     .scalars = chunk.scalars};
    const auto at_chunk = [&](const at::Tensor& tensor) {
      return tensor.mutable_data_ptr<float>() + chunk.begin;
    };
    if (target.grad.scalar_type() == at::kFloat) {
      span.grad = target.grad.const_data_ptr<float>() + chunk.begin;
    } else {
      converted_grad = chunk_of(target.grad, chunk.begin, span.count).to(at::kFloat);
      span.grad = converted_grad.const_data_ptr<float>();
    }
    span.param = at_chunk(target.param);
    span.exp_avg = at_chunk(target.state->at("exp_avg"));
    span.exp_avg_sq = at_chunk(target.state->at("exp_avg_sq"));
    if (rounds_in_loop(target)) {
      span.rounded = static_cast<uint16_t*>(target.rounded.mutable_data_ptr()) + chunk.begin;
    }
    return span;
  }

  AdamScalars make_scalars(const StepContext& context) const {
    const auto [correction1, correction2] = bias_corrections(context.step);
    AdamScalars scalars;
    scalars.grad_scale = static_cast<float>(context.grad_scale);
    if (context.weight_decay != 0 && config_.decoupled_weight_decay) {
      scalars.decay = static_cast<float>(1 - context.lr * context.weight_decay);
    } else {
      scalars.l2 = static_cast<float>(context.weight_decay);
    }
    scalars.weight1 = static_cast<float>(1 - config_.beta1);
    scalars.beta2 = static_cast<float>(config_.beta2);
    scalars.weight2 = static_cast<float>(1 - config_.beta2);
    scalars.root_correction2 = static_cast<float>(std::pow(correction2, 0.5));
    scalars.eps = static_cast<float>(config_.eps);
    scalars.step_size = static_cast<float>(-(context.lr / correction1));
    return scalars;
  }

  // update = (m / c1) / (sqrt(v / c2) + eps) + wd p; p -= lr update
  void update_as_fused(const UpdateItem& item) const {
    const StepContext& context = item.context;
    at::Tensor param = item.target.param;
    at::Tensor grad = effective_grad(item);
    if (context.weight_decay != 0 && !config_.decoupled_weight_decay) {
      grad = at::add(grad, param, context.weight_decay);
    }
    at::Tensor& exp_avg = item.target.state->at("exp_avg");
    at::Tensor& exp_avg_sq = item.target.state->at("exp_avg_sq");
    exp_avg.mul_(config_.beta1).add_(grad, 1 - config_.beta1);
    exp_avg_sq.mul_(config_.beta2).addcmul_(grad, grad, 1 - config_.beta2);
    const auto [correction1, correction2] = bias_corrections(context.step);
    const at::Tensor denominator = at::div(exp_avg_sq, correction2).sqrt_().add_(config_.eps);
    at::Tensor update = at::div(exp_avg, correction1).div_(denominator);
    if (context.weight_decay != 0 && config_.decoupled_weight_decay) {
      update.add_(at::mul(param, context.weight_decay));
    }
    param.add_(update, -context.lr);
    write_rounded(item.target);
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

std::unique_ptr<UpdateRule> make_adam(const RuleConfig& config) {
  return std::make_unique<Adam>(*config.get_if<AdamRule>());
}

}  // namespace optim
