#include "step/rules/adam_kernel.h"

#include <algorithm>
#include <bit>

#include "step/loops/bf16_bits.h"
#include "step/loops/cpu_dispatch.h"

// Rounding for rounding what torch.optim's operations do (tests/optim/step/adam_test.cc): each
// fused multiply-add below is one that ATen's lerp, addcmul or add makes.
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

template <bool kL2>
[[gnu::always_inline]] inline void moments_at(const AdamSpan& span, const Lerp& lerp, int64_t i) {
  const AdamScalars& s = span.scalars;
  float g = span.grad[i] * s.grad_scale;
  if (kL2) g = __builtin_fmaf(s.l2, span.param[i], g);
  span.exp_avg[i] = lerp(span.exp_avg[i], g);
  const float v = __builtin_fmaf(s.weight2 * g, g, span.exp_avg_sq[i] * s.beta2);
  span.exp_avg_sq[i] = v;
  span.scratch[i] = v;
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply_at(const AdamSpan& span, int64_t i) {
  const AdamScalars& s = span.scalars;
  const float denominator = span.scratch[i] / s.root_correction2 + s.eps;
  const float p = span.param[i] * s.decay + s.step_size * span.exp_avg[i] / denominator;
  span.param[i] = p;
  if (kRounds) span.rounded[i] = bf16_bits(p);
}

// What memory delivers, in elements, while a block is computed: its own prefetching ends at pages.
constexpr int64_t kAhead = 512;

// A copy of the span: what a loop writes cannot be what its scalars are read from.
template <bool kL2>
[[gnu::always_inline]] inline void moments(const AdamSpan span) {
  const Lerp lerp(span.scalars.weight1);
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) moments_at<kL2>(span, lerp, i);
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply(const AdamSpan span) {
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) apply_at<kRounds>(span, i);
}

[[gnu::always_inline]] inline bool have_usual_roots(const float* values, int64_t count) {
  uint32_t unusual = 0;  // as wide as the numbers: vectorised
  for (int64_t i = 0; i < count; ++i) {
    unusual |= has_usual_root(std::bit_cast<uint32_t>(values[i])) ? 0U : 1U;
  }
  return unusual == 0;
}

[[gnu::always_inline]] inline void take_roots(const AdamSpan& block, const SquareRoots& roots) {
  const bool by_torch = roots.only_usual && !have_usual_roots(block.scratch, block.count);
  (by_torch ? torch_square_roots : roots.take)(block.scratch, block.count);
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

template <bool kL2, bool kRounds>
[[gnu::always_inline]] inline void update(const AdamSpan& span, const SquareRoots& roots) {
  const int64_t step = roots.block == 0 ? span.count : roots.block;
  for (int64_t begin = 0; begin < span.count; begin += step) {
    const AdamSpan block = part(span, begin, std::min(step, span.count - begin));
    prefetch(block);
    moments<kL2>(block);
    take_roots(block, roots);
    apply<kRounds>(block);
  }
}

[[gnu::always_inline]] inline void adam_update_body(const AdamSpan& span,
                                                    const SquareRoots& roots) {
  if (span.scalars.l2 == 0) {
    span.rounded == nullptr ? update<false, false>(span, roots) : update<false, true>(span, roots);
  } else {
    span.rounded == nullptr ? update<true, false>(span, roots) : update<true, true>(span, roots);
  }
}

}  // namespace

CKPT_DISPATCHED(adam_update, (const AdamSpan& span, const SquareRoots& roots), (span, roots))

}  // namespace optim
