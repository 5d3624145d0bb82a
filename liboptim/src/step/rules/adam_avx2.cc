// Adam in one pass over memory, everything in registers. A vector's operations wait for each other
// for longer than the processor looks ahead, so that four vectors take each of them together.
#include "step/rules/adam_kernel.h"

#include "step/loops/cpu_dispatch.h"

#ifdef __x86_64__
#include "step/rules/avx2_roots.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

#include "step/rules/adam_sequences.h"

namespace optim {
namespace {

struct Lanes {
  __m256 values;
  [[gnu::always_inline]] explicit Lanes(__m256 v) : values(v) {}
  [[gnu::always_inline]] explicit Lanes(float value) : values(_mm256_set1_ps(value)) {}
  [[gnu::always_inline]] static Lanes at(const float* p) { return Lanes(_mm256_loadu_ps(p)); }
  [[gnu::always_inline]] void store(float* p) const { _mm256_storeu_ps(p, values); }
};
[[gnu::always_inline]] inline Lanes operator*(Lanes a, Lanes b) {
  return Lanes(_mm256_mul_ps(a.values, b.values));
}
[[gnu::always_inline]] inline Lanes operator/(Lanes a, Lanes b) {
  return Lanes(_mm256_div_ps(a.values, b.values));
}
[[gnu::always_inline]] inline Lanes operator+(Lanes a, Lanes b) {
  return Lanes(_mm256_add_ps(a.values, b.values));
}
[[gnu::always_inline]] inline Lanes operator-(Lanes a, Lanes b) {
  return Lanes(_mm256_sub_ps(a.values, b.values));
}
[[gnu::always_inline]] inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return Lanes(_mm256_fmadd_ps(a.values, b.values, c.values));
}

constexpr int kVectors = 4, kWidth = 8, kTogether = kVectors * kWidth;

struct NewtonRoots {
  static constexpr bool kOnlyUsual = true;
  [[gnu::always_inline]] void operator()(__m256 (&x)[kVectors]) const { newton_roots(x); }
};
struct FusedNewtonRoots {
  static constexpr bool kOnlyUsual = true;
  [[gnu::always_inline]] void operator()(__m256 (&x)[kVectors]) const { fused_newton_roots(x); }
};
template <bool kUsual>
struct ProcessorsRoots {
  static constexpr bool kOnlyUsual = kUsual;
  [[gnu::always_inline]] void operator()(__m256 (&x)[kVectors]) const {
#pragma GCC unroll 4
    for (__m256& lanes : x) lanes = _mm256_sqrt_ps(lanes);
  }
};

// has_usual_root() of all elements.
[[gnu::always_inline]] inline bool are_usual(const __m256 (&x)[kVectors]) {
  __m256i least = _mm256_set1_epi32(-1), most = _mm256_setzero_si256();  // without signs
#pragma GCC unroll 4
  for (const __m256& lanes : x) {
    const __m256i bits = _mm256_castps_si256(lanes);
    const __m256i before = _mm256_sub_epi32(bits, _mm256_set1_epi32(1));  // of zero: the largest
    least = _mm256_min_epu32(least, before);
    most = _mm256_max_epu32(most, bits);
  }
  const __m256i begin = _mm256_set1_epi32(static_cast<int>(kUsualRootsBegin - 1));
  const __m256i last = _mm256_set1_epi32(static_cast<int>(kUsualRootsEnd - 1));
  const __m256i is_within =
      _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_max_epu32(least, begin), least),
                       _mm256_cmpeq_epi32(_mm256_min_epu32(most, last), most));
  return _mm256_testc_si256(is_within, _mm256_set1_epi32(-1)) != 0;
}

[[gnu::noinline, gnu::cold]] void library_roots(__m256 (&x)[kVectors]) {
  float values[kTogether];
  for (int j = 0; j < kVectors; ++j) _mm256_storeu_ps(values + j * kWidth, x[j]);
  torch_square_roots(values, kTogether);
  for (int j = 0; j < kVectors; ++j) x[j] = _mm256_loadu_ps(values + j * kWidth);
}

// Whether all square roots were usual. What was stored is loaded again where it is wanted: there
// are not enough registers for all.
template <bool kL2, class Roots, class Sequence>
[[gnu::always_inline]] inline bool step_together(const AdamSpan& at, const Sequence& sequence) {
  __m256 x[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const Lanes grad = Lanes::at(at.grad + j * kWidth);
    const Lanes g =
        sequence.template effective_grad<kL2>(grad, kL2 ? Lanes::at(at.param + j * kWidth) : grad);
    sequence.exp_avg(Lanes::at(at.exp_avg + j * kWidth), g).store(at.exp_avg + j * kWidth);
    const Lanes v = sequence.exp_avg_sq(Lanes::at(at.exp_avg_sq + j * kWidth), g);
    v.store(at.exp_avg_sq + j * kWidth);
    x[j] = sequence.under_root(v).values;
  }
  const bool is_usual = !Roots::kOnlyUsual || are_usual(x);
  if (is_usual) {
    Roots()(x);
  } else {
    library_roots(x);
  }
#pragma GCC unroll 4
  for (__m256& lanes : x) lanes = sequence.denominator(Lanes(lanes)).values;
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    x[j] = sequence.update(Lanes::at(at.exp_avg + j * kWidth), Lanes(x[j])).values;
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    sequence.param(Lanes::at(at.param + j * kWidth), Lanes(x[j])).store(at.param + j * kWidth);
  }
  return is_usual;
}

[[gnu::always_inline]] inline AdamSpan span_at(const AdamSpan& span, int64_t begin) {
  return {.param = span.param + begin,
          .grad = span.grad + begin,
          .exp_avg = span.exp_avg + begin,
          .exp_avg_sq = span.exp_avg_sq + begin};
}

// What memory delivers, in elements, meanwhile. May ask behind the tensors' end: nothing happens.
[[gnu::always_inline]] inline void prefetch(const AdamSpan& span, int64_t begin) {
  constexpr int64_t kAhead = 512, kCacheLine = 16;
  for (int64_t i = begin + kAhead; i < begin + kAhead + kTogether; i += kCacheLine) {
    __builtin_prefetch(span.param + i);
    __builtin_prefetch(span.grad + i);
    __builtin_prefetch(span.exp_avg + i);
    __builtin_prefetch(span.exp_avg_sq + i);
  }
}

template <bool kL2, bool kRounds, class Roots, class Sequence>
int64_t update_together(const AdamSpan span, const Sequence sequence) {
  bool is_usual = true;
  int64_t begin = 0;
  for (; is_usual && begin + kTogether <= span.count; begin += kTogether) {
    prefetch(span, begin);
    is_usual = step_together<kL2, Roots>(span_at(span, begin), sequence);
    if (kRounds) {
      for (int64_t i = begin; i < begin + kTogether; ++i) {
        span.rounded[i] = bf16_bits(span.param[i]);
      }
    }
  }
  return begin;
}

template <class Roots, template <class> class Sequence, class Scalars>
int64_t choose_together(const AdamSpan& span, const Scalars& s) {
  const Sequence<Lanes> sequence(s);
  if (s.l2 == 0) {
    return span.rounded == nullptr ? update_together<false, false, Roots>(span, sequence)
                                   : update_together<false, true, Roots>(span, sequence);
  }
  return span.rounded == nullptr ? update_together<true, false, Roots>(span, sequence)
                                 : update_together<true, true, Roots>(span, sequence);
}

template <template <class> class Sequence, class Scalars>
int64_t choose_root(const AdamSpan& span, const Scalars& s, RootSequence root) {
  switch (root) {
    case RootSequence::Newton: return choose_together<NewtonRoots, Sequence>(span, s);
    case RootSequence::FusedNewton: return choose_together<FusedNewtonRoots, Sequence>(span, s);
    case RootSequence::Rounded: return choose_together<ProcessorsRoots<true>, Sequence>(span, s);
    case RootSequence::Processor: return choose_together<ProcessorsRoots<false>, Sequence>(span, s);
    default: return 0;
  }
}

}  // namespace

int64_t adam_update_avx2(const AdamSpan& span, const AdamScalars& s, const SquareRoots& roots) {
  return choose_root<TorchSequence>(span, s, roots.sequence);
}

int64_t fused_adam_update_avx2(const AdamSpan& span, const FusedAdamScalars& s,
                               const SquareRoots& roots) {
  return choose_root<FusedAdamSequence>(span, s, roots.sequence);
}

}  // namespace optim

#pragma GCC pop_options

namespace optim {

bool has_avx2_loop(const SquareRoots& roots) {
  const bool has_sequence =
      roots.sequence != RootSequence::Library && roots.sequence != RootSequence::Estimate14;
  return has_sequence && cpu_level() == CpuLevel::Avx2Fma;
}

}  // namespace optim

#else

namespace optim {

bool has_avx2_loop(const SquareRoots& /*roots*/) { return false; }
int64_t adam_update_avx2(const AdamSpan& /*span*/, const AdamScalars& /*s*/,
                         const SquareRoots& /*roots*/) {
  return 0;
}
int64_t fused_adam_update_avx2(const AdamSpan& /*span*/, const FusedAdamScalars& /*s*/,
                               const SquareRoots& /*roots*/) {
  return 0;
}

}  // namespace optim
#endif
