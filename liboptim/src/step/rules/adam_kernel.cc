#include "step/rules/adam_kernel.h"

#include <algorithm>
#include <bit>

#include "step/loops/bf16_bits.h"
#include "step/loops/cpu_dispatch.h"

// Rounding for rounding what torch.optim's operations, its fused kernel and TransformerEngine's do
// (tests/optim/step/adam_test.cc): each fused multiply-add below is one that is made there.
namespace optim {
namespace {

// ATen's lerp goes from the nearer end.
struct Lerp {
  float weight;
  bool from_end;
  explicit Lerp(float w) : weight(w < 0.5F ? w : w - 1), from_end(!(w < 0.5F)) {}
  [[gnu::always_inline]] float operator()(float start, float end) const {
    return __builtin_fmaf(weight, end - start, from_end ? end : start);
  }
};

// v before its root is taken.
template <bool kL2>
[[gnu::always_inline]] inline float moments_at(const AdamSpan& span, const AdamScalars& s,
                                               const Lerp& lerp, int64_t i) {
  float g = span.grad[i] * s.grad_scale;
  if (kL2) g = __builtin_fmaf(s.l2, span.param[i], g);
  span.exp_avg[i] = lerp(span.exp_avg[i], g);
  const float v = __builtin_fmaf(s.weight2 * g, g, span.exp_avg_sq[i] * s.beta2);
  span.exp_avg_sq[i] = v;
  return v;
}

template <bool kRounds>
[[gnu::always_inline]] inline void store_param(const AdamSpan& span, int64_t i, float value) {
  span.param[i] = value;
  if (kRounds) span.rounded[i] = bf16_bits(value);
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply_at(const AdamSpan& span, const AdamScalars& s, int64_t i,
                                            float root) {
  const float denominator = root / s.root_correction2 + s.eps;
  store_param<kRounds>(span, i,
                       span.param[i] * s.decay + s.step_size * span.exp_avg[i] / denominator);
}

// What memory delivers, in elements, while a block is computed: its own prefetching ends at pages.
constexpr int64_t kAhead = 512;
// What stays in the nearest cache.
constexpr int64_t kBlock = 64;

// Copies of span and scalars: what a loop writes cannot be what its scalars are read from.
template <bool kL2>
[[gnu::always_inline]] inline void moments(const AdamSpan span, const AdamScalars s,
                                           float* scratch) {
  const Lerp lerp(s.weight1);
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) scratch[i] = moments_at<kL2>(span, s, lerp, i);
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply(const AdamSpan span, const AdamScalars s,
                                         const float* scratch) {
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) apply_at<kRounds>(span, s, i, scratch[i]);
}

[[gnu::always_inline]] inline bool have_usual_roots(const float* values, int64_t count) {
  uint32_t unusual = 0;  // as wide as the numbers: vectorised
  for (int64_t i = 0; i < count; ++i) {
    unusual |= has_usual_root(std::bit_cast<uint32_t>(values[i])) ? 0U : 1U;
  }
  return unusual == 0;
}

[[gnu::always_inline]] inline void take_roots(float* scratch, int64_t count,
                                              const SquareRoots& roots) {
  const bool by_torch = roots.only_usual && !have_usual_roots(scratch, count);
  (by_torch ? torch_square_roots : roots.take)(scratch, count);
}

[[gnu::always_inline]] inline AdamSpan part(const AdamSpan& span, int64_t begin, int64_t count) {
  AdamSpan block = span;
  block.param += begin;
  block.grad += begin;
  block.exp_avg += begin;
  block.exp_avg_sq += begin;
  if (span.rounded != nullptr) block.rounded += begin;
  block.count = count;
  return block;
}

// May ask for memory behind the tensors' end, which does nothing.
[[gnu::always_inline]] inline void prefetch(const AdamSpan& block) {
  for (int64_t i = 0; i < block.count; i += 16) {
    __builtin_prefetch(block.param + i + kAhead);
    __builtin_prefetch(block.grad + i + kAhead);
    __builtin_prefetch(block.exp_avg + i + kAhead);
    __builtin_prefetch(block.exp_avg_sq + i + kAhead);
  }
}

struct TorchRoots {
  const SquareRoots& roots;
  float* scratch;
};

template <bool kL2, bool kRounds>
[[gnu::always_inline]] inline void update(const AdamSpan& span, const AdamScalars& s,
                                          const TorchRoots& torch) {
  const int64_t step = torch.roots.block == 0 ? span.count : torch.roots.block;
  for (int64_t begin = 0; begin < span.count; begin += step) {
    const AdamSpan block = part(span, begin, std::min(step, span.count - begin));
    prefetch(block);
    moments<kL2>(block, s, torch.scratch);
    take_roots(torch.scratch, block.count, torch.roots);
    apply<kRounds>(block, s, torch.scratch);
  }
}

[[gnu::always_inline]] inline void adam_update_body(const AdamSpan& span, const AdamScalars& s,
                                                    const SquareRoots& roots, float* scratch) {
  const TorchRoots torch = {roots, scratch};
  if (s.l2 == 0) {
    span.rounded == nullptr ? update<false, false>(span, s, torch)
                            : update<false, true>(span, s, torch);
  } else {
    span.rounded == nullptr ? update<true, false>(span, s, torch)
                            : update<true, true>(span, s, torch);
  }
}

// The processor's own square root, so that one loop does all.
template <bool kL2, bool kRounds>
struct TorchFusedLoop {
  [[gnu::always_inline]] static void run(const AdamSpan span, const AdamScalars s) {
    const Lerp lerp(s.weight1);
#pragma GCC ivdep
    for (int64_t i = 0; i < span.count; ++i) {
      const float v = moments_at<kL2>(span, s, lerp, i);
      apply_at<kRounds>(span, s, i, __builtin_sqrtf(v));
    }
  }
};

template <bool kL2, bool kRounds>
struct FusedAdamLoop {
  [[gnu::always_inline]] static void run(const AdamSpan span, const FusedAdamScalars s) {
#pragma GCC ivdep
    for (int64_t i = 0; i < span.count; ++i) {
      float g = span.grad[i] * s.grad_scale;
      const float p = span.param[i];
      if (kL2) g = __builtin_fmaf(s.l2, p, g);
      const float m = __builtin_fmaf(span.exp_avg[i], s.beta1, s.weight1 * g);
      const float v = __builtin_fmaf(span.exp_avg_sq[i], s.beta2, s.weight2 * g * g);
      span.exp_avg[i] = m;
      span.exp_avg_sq[i] = v;
      const float denominator = __builtin_sqrtf(v * s.inverse2) + s.eps;
      const float update = m * s.inverse1 * (1.0F / denominator);
      store_param<kRounds>(span, i,
                           __builtin_fmaf(s.minus_lr, __builtin_fmaf(s.added_decay, p, update), p));
    }
  }
};

template <class Loop, class Scalars>
[[gnu::always_inline]] inline void in_blocks(const AdamSpan& span, const Scalars& s) {
  for (int64_t begin = 0; begin < span.count; begin += kBlock) {
    const AdamSpan block = part(span, begin, std::min(kBlock, span.count - begin));
    prefetch(block);
    Loop::run(block, s);
  }
}

template <template <bool, bool> class Loop, class Scalars>
[[gnu::always_inline]] inline void choose_loop(const AdamSpan& span, const Scalars& s) {
  if (s.l2 == 0) {
    span.rounded == nullptr ? in_blocks<Loop<false, false>>(span, s)
                            : in_blocks<Loop<false, true>>(span, s);
  } else {
    span.rounded == nullptr ? in_blocks<Loop<true, false>>(span, s)
                            : in_blocks<Loop<true, true>>(span, s);
  }
}

[[gnu::always_inline]] inline void torch_fused_adam_update_body(const AdamSpan& span,
                                                                const AdamScalars& s) {
  choose_loop<TorchFusedLoop>(span, s);
}

[[gnu::always_inline]] inline void fused_adam_update_body(const AdamSpan& span,
                                                          const FusedAdamScalars& s) {
  choose_loop<FusedAdamLoop>(span, s);
}

[[gnu::always_inline]] inline void torch_fused_adam_tail_body(const AdamSpan& span,
                                                              const AdamScalars& s) {
  const Lerp lerp(s.weight1);
  for (int64_t i = 0; i < span.count; ++i) {
    const float g = __builtin_fmaf(s.l2, span.param[i], span.grad[i] * s.grad_scale);
    const float v = __builtin_fmaf(span.exp_avg_sq[i], s.beta2, s.weight2 * g * g);
    span.exp_avg[i] = lerp(span.exp_avg[i], g);
    span.exp_avg_sq[i] = v;
    apply_at<false>(span, s, i, __builtin_sqrtf(v));
    if (span.rounded != nullptr) span.rounded[i] = bf16_bits(span.param[i]);
  }
}

}  // namespace

AdamSpan part_of(const AdamSpan& span, int64_t begin, int64_t count) {
  return part(span, begin, count);
}

CKPT_DISPATCHED(adam_update,
                (const AdamSpan& span, const AdamScalars& scalars, const SquareRoots& roots,
                 float* scratch),
                (span, scalars, roots, scratch))
CKPT_DISPATCHED(torch_fused_adam_update, (const AdamSpan& span, const AdamScalars& scalars),
                (span, scalars))
CKPT_DISPATCHED(torch_fused_adam_tail, (const AdamSpan& span, const AdamScalars& scalars),
                (span, scalars))
CKPT_DISPATCHED(fused_adam_update, (const AdamSpan& span, const FusedAdamScalars& scalars),
                (span, scalars))

}  // namespace optim
