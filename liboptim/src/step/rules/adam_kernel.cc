// Adam's loops for any processor: as wide as it is, in blocks that its nearest cache holds.
#include "step/rules/adam_kernel.h"

#include <algorithm>
#include <bit>

#include "step/loops/cpu_dispatch.h"
#include "step/rules/adam_sequences.h"

namespace optim {
namespace {

// What memory delivers, in elements, while a block is computed: its own prefetching ends at pages.
constexpr int64_t kAhead = 512;

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

[[gnu::always_inline]] inline bool have_usual_roots(const float* values, int64_t count) {
  uint32_t unusual = 0;  // as wide as the numbers: vectorised
  for (int64_t i = 0; i < count; ++i) {
    unusual |= has_usual_root(std::bit_cast<uint32_t>(values[i])) ? 0U : 1U;
  }
  return unusual == 0;
}

[[gnu::always_inline]] inline void take_roots(const AdamRoots& roots, int64_t count) {
  const bool by_torch = roots.roots.only_usual && !have_usual_roots(roots.scratch, count);
  (by_torch ? torch_square_roots : roots.roots.take)(roots.scratch, count);
}

// The number whose root is wanted.
template <bool kL2, class Sequence>
[[gnu::always_inline]] inline float moments_at(const AdamSpan& span, const Sequence& sequence,
                                               int64_t i) {
  const float g = sequence.template effective_grad<kL2>(span.grad[i], span.param[i]);
  span.exp_avg[i] = sequence.exp_avg(span.exp_avg[i], g);
  const float v = sequence.exp_avg_sq(span.exp_avg_sq[i], g);
  span.exp_avg_sq[i] = v;
  return sequence.under_root(v);
}

template <bool kRounds, class Sequence>
[[gnu::always_inline]] inline void apply_at(const AdamSpan& span, const Sequence& sequence,
                                            int64_t i, float root) {
  const float update = sequence.update(span.exp_avg[i], sequence.denominator(root));
  const float p = sequence.param(span.param[i], update);
  span.param[i] = p;
  if (kRounds) span.rounded[i] = bf16_bits(p);
}

// Span and sequence are copies: what a loop writes cannot be what its scalars are read from.
template <bool kL2, class Sequence>
[[gnu::always_inline]] inline void moments_of(const AdamSpan span, const Sequence sequence,
                                              float* scratch) {
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) scratch[i] = moments_at<kL2>(span, sequence, i);
}

template <bool kRounds, class Sequence>
[[gnu::always_inline]] inline void apply_to(const AdamSpan span, const Sequence sequence,
                                            const float* scratch) {
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) apply_at<kRounds>(span, sequence, i, scratch[i]);
}

// With the bits of ATen's square root.
template <bool kL2, bool kRounds, class Sequence>
[[gnu::always_inline]] inline void update_by(const AdamSpan& span, const Sequence& sequence,
                                             const AdamRoots& roots) {
  const int64_t step = roots.roots.block == 0 ? span.count : roots.roots.block;
  for (int64_t begin = 0; begin < span.count; begin += step) {
    const AdamSpan block = part(span, begin, std::min(step, span.count - begin));
    prefetch(block);
    moments_of<kL2>(block, sequence, roots.scratch);
    take_roots(roots, block.count);
    apply_to<kRounds>(block, sequence, roots.scratch);
  }
}

template <bool kL2, bool kRounds, class Sequence>
[[gnu::always_inline]] inline void one_loop(const AdamSpan span, const Sequence sequence) {
#pragma GCC ivdep
  for (int64_t i = 0; i < span.count; ++i) {
    apply_at<kRounds>(span, sequence, i, __builtin_sqrtf(moments_at<kL2>(span, sequence, i)));
  }
}

// With the processor's square root, which is rounded correctly.
template <bool kL2, bool kRounds, class Sequence>
[[gnu::always_inline]] inline void update_by(const AdamSpan& span, const Sequence& sequence) {
  for (int64_t begin = 0; begin < span.count; begin += kRootsAtATime) {
    const AdamSpan block = part(span, begin, std::min(kRootsAtATime, span.count - begin));
    prefetch(block);
    one_loop<kL2, kRounds>(block, sequence);
  }
}

template <template <class> class Sequence, class Scalars, class... Roots>
[[gnu::always_inline]] inline void choose(const AdamSpan& span, const Scalars& s,
                                          const Roots&... roots) {
  const Sequence<float> sequence(s);
  if (s.l2 == 0) {
    span.rounded == nullptr ? update_by<false, false>(span, sequence, roots...)
                            : update_by<false, true>(span, sequence, roots...);
  } else {
    span.rounded == nullptr ? update_by<true, false>(span, sequence, roots...)
                            : update_by<true, true>(span, sequence, roots...);
  }
}

[[gnu::always_inline]] inline void adam_update_body(const AdamSpan& span, const AdamScalars& s,
                                                    const AdamRoots& roots) {
  choose<TorchSequence>(span, s, roots);
}

[[gnu::always_inline]] inline void torch_fused_update_body(const AdamSpan& span,
                                                           const AdamScalars& s) {
  choose<TorchSequence>(span, s);
}

[[gnu::always_inline]] inline void torch_fused_tail_body(const AdamSpan& span,
                                                         const AdamScalars& s) {
  const TorchSequence<float> sequence(s);
  for (int64_t i = 0; i < span.count; ++i) {
    const float p = span.param[i];
    const float g = s.l2 == 0 ? sequence.effective_grad<false>(span.grad[i], p)
                              : sequence.effective_grad<true>(span.grad[i], p);
    const float v = sequence.exp_avg_sq_of_tail(span.exp_avg_sq[i], g);
    span.exp_avg[i] = sequence.exp_avg(span.exp_avg[i], g);
    span.exp_avg_sq[i] = v;
    apply_at<false>(span, sequence, i, __builtin_sqrtf(v));
    if (span.rounded != nullptr) span.rounded[i] = bf16_bits(span.param[i]);
  }
}

[[gnu::always_inline]] inline void fused_adam_update_body(const AdamSpan& span,
                                                          const FusedAdamScalars& s,
                                                          const AdamRoots& roots) {
  choose<FusedAdamSequence>(span, s, roots);
}

[[gnu::always_inline]] inline void transformer_engine_update_body(const AdamSpan& span,
                                                                  const FusedAdamScalars& s) {
  choose<FusedAdamSequence>(span, s);
}

}  // namespace

AdamSpan part_of(const AdamSpan& span, int64_t begin, int64_t count) {
  return part(span, begin, count);
}

CKPT_DISPATCHED(adam_update,
                (const AdamSpan& span, const AdamScalars& scalars, const AdamRoots& roots),
                (span, scalars, roots))
CKPT_DISPATCHED(torch_fused_update, (const AdamSpan& span, const AdamScalars& scalars),
                (span, scalars))
CKPT_DISPATCHED(torch_fused_tail, (const AdamSpan& span, const AdamScalars& scalars),
                (span, scalars))
CKPT_DISPATCHED(fused_adam_update,
                (const AdamSpan& span, const FusedAdamScalars& s, const AdamRoots& roots),
                (span, s, roots))
CKPT_DISPATCHED(transformer_engine_update, (const AdamSpan& span, const FusedAdamScalars& s),
                (span, s))

}  // namespace optim
