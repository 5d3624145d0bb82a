// Square roots as MKL's vsSqrt takes them with AVX2. It neither divides nor uses the processor's
// root: it takes an estimate y of 1 / sqrt(x) and makes Newton steps. Which steps is seen from its
// results (docs/why/stepping.md); the estimate, which only the processor defines, comes
// from the processor here, too. That of zero would be infinite; another one gives zero, too.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>

namespace optim {

// Each function takes `kCount` vectors through every operation together: one vector's wait for each
// other.
template <int kCount>
struct RootEstimates {
  __m256 r[kCount], h[kCount];  // x y and y / 2

  [[gnu::target("avx2"), gnu::always_inline]] explicit RootEstimates(const __m256 (&x)[kCount]) {
    const __m256 least = _mm256_set1_ps(0x1p-110F), half = _mm256_set1_ps(0.5F);
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) h[j] = _mm256_rsqrt_ps(_mm256_max_ps(x[j], least));
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) {
      r[j] = _mm256_mul_ps(x[j], h[j]);
      h[j] = _mm256_mul_ps(h[j], half);
    }
  }
};

// Two steps, the first on r = x y and on h = y / 2: e = 1/2 - r h, r + r e, h + h e; then
// r + h (x - r r).
template <int kCount>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void fused_newton_roots(
    __m256 (&x)[kCount]) {
  RootEstimates<kCount> y(x);
  const __m256 half = _mm256_set1_ps(0.5F);
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    const __m256 e = _mm256_fnmadd_ps(y.r[j], y.h[j], half);
    y.r[j] = _mm256_fmadd_ps(y.r[j], e, y.r[j]);
    y.h[j] = _mm256_fmadd_ps(y.h[j], e, y.h[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    x[j] = _mm256_fmadd_ps(y.h[j], _mm256_fnmadd_ps(y.r[j], y.r[j], x[j]), y.r[j]);
  }
}

// The same without fused operations: what MKL runs on AMD's processors.
template <int kCount>
[[gnu::target("avx2"), gnu::always_inline]] inline void newton_roots(__m256 (&x)[kCount]) {
  RootEstimates<kCount> y(x);
  const __m256 half = _mm256_set1_ps(0.5F);
  __m256 e[kCount];
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) e[j] = _mm256_sub_ps(half, _mm256_mul_ps(y.r[j], y.h[j]));
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    y.r[j] = _mm256_add_ps(y.r[j], _mm256_mul_ps(y.r[j], e[j]));
    y.h[j] = _mm256_add_ps(y.h[j], _mm256_mul_ps(y.h[j], e[j]));
  }
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    const __m256 rest = _mm256_sub_ps(x[j], _mm256_mul_ps(y.r[j], y.r[j]));
    x[j] = _mm256_add_ps(y.r[j], _mm256_mul_ps(y.h[j], rest));
  }
}

}  // namespace optim
#endif
