#include "step/rules/own_roots.h"

#include <cmath>
#include <vector>

#include "step/loops/cpu_dispatch.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

// MKL's vsSqrt neither divides nor uses the processor's root: it takes an estimate y of 1 / sqrt(x)
// and makes Newton steps. Which estimate and which steps is seen from its results
// (docs/decisions/0055 and 0126); estimates by instructions that only the processor defines come
// from the processor here, too. An estimate for zero would be infinite, and is left out.
namespace optim {
namespace {

void correctly_rounded(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = std::sqrt(values[i]);
}

#ifdef __x86_64__

// One step: r = x y, r + (y / 2)(x - r r).
[[gnu::target("avx512f")]] void by_rsqrt14(float* values, int64_t count) {
  const __m512 half = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(values + i);
    const __mmask16 positive =
        _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_castps_si512(x));
    const __m512 y = _mm512_maskz_rsqrt14_ps(positive, x);
    const __m512 r = _mm512_mul_ps(x, y);
    const __m512 error = _mm512_fnmadd_ps(r, r, x);
    _mm512_storeu_ps(values + i, _mm512_fmadd_ps(_mm512_mul_ps(y, half), error, r));
  }
}

// Two steps, the first on r = x y and on h = y / 2: e = 1/2 - r h, r + r e, h + h e; then
// r + h (x - r r).
[[gnu::target("avx2,fma")]] void by_rsqrt_fused(float* values, int64_t count) {
  const __m256 half = _mm256_set1_ps(0.5F), zero = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 x = _mm256_loadu_ps(values + i);
    const __m256 y = _mm256_and_ps(_mm256_rsqrt_ps(x), _mm256_cmp_ps(x, zero, _CMP_NEQ_OQ));
    __m256 r = _mm256_mul_ps(x, y), h = _mm256_mul_ps(y, half);
    const __m256 e = _mm256_fnmadd_ps(r, h, half);
    r = _mm256_fmadd_ps(r, e, r);
    h = _mm256_fmadd_ps(h, e, h);
    _mm256_storeu_ps(values + i, _mm256_fmadd_ps(h, _mm256_fnmadd_ps(r, r, x), r));
  }
}

// The same without fused operations: what MKL runs on AMD's processors.
[[gnu::target("avx2")]] void by_rsqrt(float* values, int64_t count) {
  const __m256 half = _mm256_set1_ps(0.5F), zero = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 x = _mm256_loadu_ps(values + i);
    const __m256 y = _mm256_and_ps(_mm256_rsqrt_ps(x), _mm256_cmp_ps(x, zero, _CMP_NEQ_OQ));
    __m256 r = _mm256_mul_ps(x, y), h = _mm256_mul_ps(y, half);
    const __m256 e = _mm256_sub_ps(half, _mm256_mul_ps(r, h));
    r = _mm256_add_ps(r, _mm256_mul_ps(r, e));
    h = _mm256_add_ps(h, _mm256_mul_ps(h, e));
    const __m256 rest = _mm256_sub_ps(x, _mm256_mul_ps(r, r));
    _mm256_storeu_ps(values + i, _mm256_add_ps(r, _mm256_mul_ps(h, rest)));
  }
}

#endif

}  // namespace

std::span<const TakeRoots> own_roots() {
  static const std::vector<TakeRoots> roots = [] {
    std::vector<TakeRoots> found;
#ifdef __x86_64__
    if (cpu_level() == CpuLevel::Avx512) found.push_back(by_rsqrt14);
    if (cpu_level() != CpuLevel::Baseline) {
      found.push_back(by_rsqrt_fused);
      found.push_back(by_rsqrt);
    }
#endif
    found.push_back(correctly_rounded);
    return found;
  }();
  return roots;
}

}  // namespace optim
