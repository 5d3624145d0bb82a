#include "step/rules/adam_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "step/bf16_bits.h"
#include "step/cpu_dispatch.h"

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

// Copies of the spans: what a loop writes cannot be what its scalars are read from.
template <bool kL2>
[[gnu::always_inline]] inline void moments_from(const AdamSpan next, int64_t begin) {
  const Lerp lerp(next.scalars.weight1);
#pragma GCC ivdep
  for (int64_t i = begin; i < next.count; ++i) moments_at<kL2>(next, lerp, i);
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply_from(const AdamSpan span, int64_t begin) {
#pragma GCC ivdep
  for (int64_t i = begin; i < span.count; ++i) apply_at<kRounds>(span, i);
}

template <bool kRounds, bool kL2>
[[gnu::always_inline]] inline void both(const AdamSpan span, const AdamSpan next) {
  const Lerp lerp(next.scalars.weight1);
  const int64_t shared = std::min(span.count, next.count);
#pragma GCC ivdep
  for (int64_t i = 0; i < shared; ++i) {
    apply_at<kRounds>(span, i);
    moments_at<kL2>(next, lerp, i);
  }
  apply_from<kRounds>(span, shared);
  moments_from<kL2>(next, shared);
}

[[gnu::always_inline]] inline void adam_moments_body(const AdamSpan& span) {
  span.scalars.l2 == 0 ? moments_from<false>(span, 0) : moments_from<true>(span, 0);
}

[[gnu::always_inline]] inline void adam_apply_body(const AdamSpan& span) {
  span.rounded == nullptr ? apply_from<false>(span, 0) : apply_from<true>(span, 0);
}

[[gnu::always_inline]] inline void adam_apply_and_moments_body(const AdamSpan& span,
                                                               const AdamSpan& next) {
  if (next.scalars.l2 == 0) {
    span.rounded == nullptr ? both<false, false>(span, next) : both<true, false>(span, next);
  } else {
    span.rounded == nullptr ? both<false, true>(span, next) : both<true, true>(span, next);
  }
}

}  // namespace

CKPT_DISPATCHED(adam_moments, (const AdamSpan& span), (span))
CKPT_DISPATCHED(adam_apply, (const AdamSpan& span), (span))
CKPT_DISPATCHED(adam_apply_and_moments, (const AdamSpan& span, const AdamSpan& next), (span, next))

}  // namespace optim
