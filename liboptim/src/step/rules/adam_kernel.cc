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
[[gnu::always_inline]] inline void moments(const AdamSpan& span, const AdamScalars& scalars) {
  const AdamScalars s = scalars;
  const Lerp lerp(s.weight1);
  const float* const __restrict param = span.param;
  const float* const __restrict grad = span.grad;
  float* const __restrict exp_avg = span.exp_avg;
  float* const __restrict exp_avg_sq = span.exp_avg_sq;
  float* const __restrict scratch = span.scratch;
  for (int64_t i = 0; i < span.count; ++i) {
    float g = grad[i] * s.grad_scale;
    if (kL2) g = __builtin_fmaf(s.l2, param[i], g);
    exp_avg[i] = lerp(exp_avg[i], g);
    const float v = __builtin_fmaf(s.weight2 * g, g, exp_avg_sq[i] * s.beta2);
    exp_avg_sq[i] = v;
    scratch[i] = v;
  }
}

[[gnu::always_inline]] inline void adam_moments_body(const AdamSpan& span,
                                                     const AdamScalars& scalars) {
  if (scalars.l2 == 0) {
    moments<false>(span, scalars);
  } else {
    moments<true>(span, scalars);
  }
}

constexpr int64_t kLine = 16;  // elements of a cache line
constexpr int64_t kPrefetched = 16 * kLine;

// What follows a span in memory is most likely the next span: it comes into the cache while
// divisions keep the processor busy. A prefetch past the end of a tensor does nothing.
[[gnu::always_inline]] inline void prefetch(const AdamSpan& span, int64_t first) {
  for (int64_t i = first; i < first + kPrefetched; i += kLine) {
    __builtin_prefetch(span.grad + i, 0, 2);
    __builtin_prefetch(span.exp_avg + i, 1, 2);
    __builtin_prefetch(span.exp_avg_sq + i, 1, 2);
    __builtin_prefetch(span.param + i, 1, 2);
  }
}

template <bool kRounds>
[[gnu::always_inline]] inline void apply(const AdamSpan& span, const AdamScalars& s, int64_t begin,
                                         int64_t end) {
  float* const __restrict param = span.param;
  const float* const __restrict exp_avg = span.exp_avg;
  const float* const __restrict root = span.scratch;
  uint16_t* const __restrict rounded = span.rounded;
  for (int64_t i = begin; i < end; ++i) {
    const float denominator = root[i] / s.root_correction2 + s.eps;
    const float p = param[i] * s.decay + s.step_size * exp_avg[i] / denominator;
    param[i] = p;
    if (kRounds) rounded[i] = bf16_bits(p);
  }
}

[[gnu::always_inline]] inline void adam_apply_body(const AdamSpan& span,
                                                   const AdamScalars& scalars) {
  const AdamScalars s = scalars;
  for (int64_t begin = 0; begin < span.count; begin += kPrefetched) {
    prefetch(span, span.count + begin);
    const int64_t end = std::min(span.count, begin + kPrefetched);
    if (span.rounded == nullptr) {
      apply<false>(span, s, begin, end);
    } else {
      apply<true>(span, s, begin, end);
    }
  }
}

}  // namespace

CKPT_DISPATCHED(adam_moments, (const AdamSpan& span, const AdamScalars& scalars), (span, scalars))
CKPT_DISPATCHED(adam_apply, (const AdamSpan& span, const AdamScalars& scalars), (span, scalars))

}  // namespace optim
