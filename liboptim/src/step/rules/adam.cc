// Adam and AdamW on the CPU, in each AdamArithmetic.
#include "step/rules/makers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <optim/update_rule.h>

#include "step/rules/adam_kernel.h"
#include "step/rules/chunks.h"
#include "step/rules/fp32_betas.h"

namespace optim {
namespace {

template <class Scalars>
struct AdamChunk {
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
  std::vector<AdamChunk<Scalars>> chunks;
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
      const AdamChunk<Scalars>& chunk = chunks[static_cast<size_t>(i)];
      at::Tensor converted_grad;
      update(span_of(chunk.item->target, chunk.begin, converted_grad), chunk.scalars,
             scratch.data());
    }
  });
  for (const UpdateItem& item : items) {
    if (!rounds_in_loop(item.target)) write_rounded(item.target);
  }
}

// `fast` says how many elements it updated from the first on. Where it stops for unusual square
// roots there will be more of them: a call for many at once costs the least.
template <class Fast, class Slow>
void update_parts(const AdamSpan& span, Fast&& fast, Slow&& slow) {
  constexpr int64_t kSlowAtATime = 1024;
  for (int64_t begin = 0; begin < span.count;) {
    begin += fast(part_of(span, begin, span.count - begin));
    const int64_t count = std::min(kSlowAtATime, span.count - begin);
    if (count > 0) slow(part_of(span, begin, count));
    begin += count;
  }
}

constexpr SquareRoots kProcessorsRoots = {RootSequence::Processor, nullptr, 0, false};

SquareRoots roots_for(std::span<const UpdateItem> items) {
  int64_t elements = 0;
  for (const UpdateItem& item : items) elements += item.target.param.numel();
  return square_roots_for(elements);
}

// With the bits of ATen's square root: `kFast` where the processor has its loop, and `kSlow` for
// the elements that this leaves.
template <auto kFast, auto kSlow, class MakeScalars>
void update_with_library_roots(std::span<const UpdateItem> items, MakeScalars&& make_scalars) {
  const SquareRoots roots = roots_for(items);
  update_spans(items, make_scalars, [&](const AdamSpan& span, const auto& s, float* scratch) {
    if (!has_avx2_loop(roots)) return kSlow(span, s, {roots, scratch});
    update_parts(
        span, [&](const AdamSpan& part) { return kFast(part, s, roots); },
        [&](const AdamSpan& part) {
          kSlow(part, s, {kLibraryRoots, scratch});
        });
  });
}

// The results of Torch and Fused are torch.optim's bit for bit on the same machine, those of
// FusedAdam the bits of ATen's operations one by one: fused multiply-adds where ATen fuses, and the
// bits of its square root, which rounds as the processor and MKL please (docs/why/stepping.md).
// TransformerEngine and Fused take the processor's root.
class Adam final : public UpdateRule {
 public:
  explicit Adam(const AdamRule& config) : UpdateRule(config), config_(config) {}

  void update_all(std::span<const UpdateItem> items) const override {
    for (const UpdateItem& item : items) init_state(item.target.param, *item.target.state);
    switch (config_.arithmetic) {
      case AdamArithmetic::Torch: return update_as_torch(items);
      case AdamArithmetic::FusedAdam: return update_as_fused_adam(items);
      case AdamArithmetic::TransformerEngine: return update_as_transformer_engine(items);
      case AdamArithmetic::Fused: return update_as_torch_fused(items);
    }
  }

 private:
  void update_as_torch(std::span<const UpdateItem> items) const {
    update_with_library_roots<adam_update_avx2, adam_update>(
        items, [this](const StepContext& context) { return torch_scalars(context); });
  }

  // Chunks and ranges of parameters begin and end between vectors (RangeItems), so that only what
  // ends a parameter has a tail.
  void update_as_torch_fused(std::span<const UpdateItem> items) const {
    static_assert(kChunk % kTorchFusedVector == 0);
    update_spans(
        items, [this](const StepContext& context) { return torch_scalars(context); },
        [](const AdamSpan& span, const AdamScalars& s, float*) {
          const int64_t body = span.count - span.count % kTorchFusedVector;
          const int64_t done =
              has_avx2_loop(kProcessorsRoots) ? adam_update_avx2(span, s, kProcessorsRoots) : 0;
          torch_fused_update(part_of(span, done, body - done), s);
          torch_fused_tail(part_of(span, body, span.count - body), s);
        });
  }

  void update_as_fused_adam(std::span<const UpdateItem> items) const {
    update_with_library_roots<fused_adam_update_avx2, fused_adam_update>(
        items, [this](const StepContext& context) { return fused_adam_scalars(config_, context); });
  }

  void update_as_transformer_engine(std::span<const UpdateItem> items) const {
    const AdamRule rule = with_fp32_betas(config_);
    update_spans(
        items, [&](const StepContext& context) { return fused_adam_scalars(rule, context); },
        [](const AdamSpan& span, const FusedAdamScalars& s, float*) {
          const int64_t done = has_avx2_loop(kProcessorsRoots)
                                   ? fused_adam_update_avx2(span, s, kProcessorsRoots)
                                   : 0;
          transformer_engine_update(part_of(span, done, span.count - done), s);
        });
  }

  AdamScalars torch_scalars(const StepContext& context) const {
    const auto [correction1, correction2] = bias_corrections(config_, context.step);
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

  static FusedAdamScalars fused_adam_scalars(const AdamRule& rule, const StepContext& context) {
    const auto [correction1, correction2] = bias_corrections(rule, context.step);
    FusedAdamScalars scalars;
    scalars.grad_scale = static_cast<float>(context.grad_scale);
    const auto weight_decay = static_cast<float>(context.weight_decay);
    (rule.decoupled_weight_decay ? scalars.added_decay : scalars.l2) = weight_decay;
    scalars.beta1 = static_cast<float>(rule.beta1);
    scalars.weight1 = static_cast<float>(1 - rule.beta1);
    scalars.correction1 = static_cast<float>(correction1);
    scalars.beta2 = static_cast<float>(rule.beta2);
    scalars.weight2 = static_cast<float>(1 - rule.beta2);
    scalars.correction2 = static_cast<float>(correction2);
    scalars.eps = static_cast<float>(rule.eps);
    scalars.minus_lr = static_cast<float>(-context.lr);
    return scalars;
  }

  struct Corrections {
    double first = 1, second = 1;
  };
  static Corrections bias_corrections(const AdamRule& rule, int64_t step) {
    if (!rule.bias_correction) return {};
    const auto exponent = static_cast<double>(step);
    return {1 - std::pow(rule.beta1, exponent), 1 - std::pow(rule.beta2, exponent)};
  }

  AdamRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const RuleConfig& config) {
  return std::make_unique<Adam>(*config.get_if<AdamRule>());
}

}  // namespace optim
