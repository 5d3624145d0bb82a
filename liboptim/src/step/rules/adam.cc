#include "step/rules/makers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "step/rules/adam_kernel.h"
#include "step/rules/chunks.h"
#include "step/rules/effective_grad.h"

namespace optim {
namespace {

template <class Scalars>
struct Chunk {
  const UpdateItem* item = nullptr;
  Scalars scalars;
  int64_t begin = 0;
};

bool rounds_in_loop(const UpdateTarget& target) {
  return target.rounded.defined() && target.rounded.scalar_type() == at::kBFloat16;
}

AdamSpan span_of(const UpdateTarget& target, int64_t begin, at::Tensor& converted_grad) {
  AdamSpan span;
  span.count = std::min(kChunk, target.param.numel() - begin);
  const auto at_chunk = [&](const at::Tensor& tensor) {
    return tensor.mutable_data_ptr<float>() + begin;
  };
  if (target.grad.scalar_type() == at::kFloat) {
    span.grad = target.grad.const_data_ptr<float>() + begin;
  } else {
    converted_grad = chunk_of(target.grad, begin, span.count).to(at::kFloat);
    span.grad = converted_grad.const_data_ptr<float>();
  }
  span.param = at_chunk(target.param);
  span.exp_avg = at_chunk(target.state->at("exp_avg"));
  span.exp_avg_sq = at_chunk(target.state->at("exp_avg_sq"));
  if (rounds_in_loop(target)) {
    span.rounded = static_cast<uint16_t*>(target.rounded.mutable_data_ptr()) + begin;
  }
  return span;
}

// update(span, scalars, scratch) for all chunks of all items, in parallel; `scratch` is of a
// chunk's size, and defined.
template <class MakeScalars, class Update>
void update_spans(std::span<const UpdateItem> items, MakeScalars&& make_scalars, Update&& update) {
  using Scalars = decltype(make_scalars(StepContext()));
  std::vector<Chunk<Scalars>> chunks;
  for (const UpdateItem& item : items) {
    const Scalars scalars = make_scalars(item.context);
    const int64_t count = item.target.param.numel();
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      chunks.push_back({&item, scalars, begin});
    }
  }
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    const SingleThread single_thread;
    std::vector<float> scratch(kChunk);
    for (int64_t i = first; i < last; ++i) {
      const Chunk<Scalars>& chunk = chunks[static_cast<size_t>(i)];
      at::Tensor converted_grad;
      update(span_of(chunk.item->target, chunk.begin, converted_grad), chunk.scalars,
             scratch.data());
    }
  });
  for (const UpdateItem& item : items) {
    if (!rounds_in_loop(item.target)) write_rounded(item.target);
  }
}

// The results of AdamArithmetic::Torch and TorchFused are torch.optim's bit for bit on the same
// machine: fused multiply-adds where ATen fuses, and the bits of its square root, which rounds as
// the processor and MKL please (docs/decisions/0055), or of the processor's.
class Adam final : public UpdateRule {
 public:
  // `is_of_kernels`: see make_rule_of_kernels().
  explicit Adam(const AdamRule& config, bool is_of_kernels = false)
      : UpdateRule(config), config_(config), is_of_kernels_(is_of_kernels) {}

  void update_all(std::span<const UpdateItem> items) const override {
    for (const UpdateItem& item : items) init_state(item.target.param, *item.target.state);
    switch (config_.arithmetic) {
      case AdamArithmetic::Torch:
        return is_of_kernels_ ? update_as_torch_fused(items) : update_as_torch(items);
      case AdamArithmetic::FusedAdam: return update_as_fused_adam(items);
      case AdamArithmetic::TorchFused: return update_as_torch_fused(items);
    }
  }

 private:
  void update_as_torch(std::span<const UpdateItem> items) const {
    int64_t elements = 0;
    for (const UpdateItem& item : items) elements += item.target.param.numel();
    const SquareRoots roots = square_roots_for(elements);
    update_spans(
        items, [this](const StepContext& context) { return torch_scalars(context); },
        [&](const AdamSpan& span, const AdamScalars& scalars, float* scratch) {
          adam_update(span, scalars, roots, scratch);
        });
  }

  void update_as_torch_fused(std::span<const UpdateItem> items) const {
    static_assert(kChunk % kTorchFusedVector == 0);
    update_spans(
        items, [this](const StepContext& context) { return torch_scalars(context); },
        [this](const AdamSpan& span, const AdamScalars& scalars, float*) {
          const int64_t tail = is_of_kernels_ ? 0 : span.count % kTorchFusedVector;
          torch_fused_adam_update(part_of(span, 0, span.count - tail), scalars);
          torch_fused_adam_tail(part_of(span, span.count - tail, tail), scalars);
        });
  }

  void update_as_fused_adam(std::span<const UpdateItem> items) const {
    update_spans(
        items, [this](const StepContext& context) { return fused_adam_scalars(context); },
        [](const AdamSpan& span, const FusedAdamScalars& scalars, float*) {
          fused_adam_update(span, scalars);
        });
  }

  AdamScalars torch_scalars(const StepContext& context) const {
    const double lr = context.lr;
    const auto step = static_cast<double>(context.step);
    AdamScalars scalars;
    scalars.grad_scale = static_cast<float>(context.grad_scale);
    if (context.weight_decay != 0 && config_.decoupled_weight_decay) {
      scalars.decay = static_cast<float>(1 - lr * context.weight_decay);
    } else {
      scalars.l2 = static_cast<float>(context.weight_decay);
    }
    scalars.weight1 = static_cast<float>(1 - config_.beta1);
    scalars.beta2 = static_cast<float>(config_.beta2);
    scalars.weight2 = static_cast<float>(1 - config_.beta2);
    scalars.root_correction2 = static_cast<float>(std::pow(1 - std::pow(config_.beta2, step), 0.5));
    scalars.eps = static_cast<float>(config_.eps);
    scalars.step_size = static_cast<float>(-(lr / (1 - std::pow(config_.beta1, step))));
    return scalars;
  }

  // In fp32 from the betas on, as TransformerEngine has them (docs/decisions/0173).
  FusedAdamScalars fused_adam_scalars(const StepContext& context) const {
    const auto inverse_of_correction = [&](float beta) {
      if (!config_.bias_correction) return 1.0F;
      const double power = std::pow(static_cast<double>(beta), static_cast<double>(context.step));
      return 1.0F / static_cast<float>(1 - power);
    };
    FusedAdamScalars scalars;
    scalars.grad_scale = static_cast<float>(context.grad_scale);
    const auto weight_decay = static_cast<float>(context.weight_decay);
    (config_.decoupled_weight_decay ? scalars.added_decay : scalars.l2) = weight_decay;
    scalars.beta1 = static_cast<float>(config_.beta1);
    scalars.weight1 = 1.0F - scalars.beta1;
    scalars.inverse1 = inverse_of_correction(scalars.beta1);
    scalars.beta2 = static_cast<float>(config_.beta2);
    scalars.weight2 = 1.0F - scalars.beta2;
    scalars.inverse2 = inverse_of_correction(scalars.beta2);
    scalars.eps = static_cast<float>(config_.eps);
    scalars.minus_lr = -static_cast<float>(context.lr);
    return scalars;
  }

  AdamRule config_;
  bool is_of_kernels_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const RuleConfig& config) {
  return std::make_unique<Adam>(*config.get_if<AdamRule>());
}

std::unique_ptr<UpdateRule> make_rule_of_kernels(const RuleConfig& config) {
  const auto* const adam = config.get_if<AdamRule>();
  if (adam == nullptr) return make_rule(config);
  return std::make_unique<Adam>(*adam, /*is_of_kernels=*/true);
}

}  // namespace optim
