// What MKL's vsSqrt computes (avx2_roots.h), over many numbers.
#include "step/rules/square_roots.h"

#include <cmath>
#include <vector>

#include "step/loops/cpu_dispatch.h"
#include "step/rules/avx2_roots.h"

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

[[gnu::target("avx2,fma")]] void by_rsqrt_fused(float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    __m256 x[] = {_mm256_loadu_ps(values + i), _mm256_loadu_ps(values + i + 8)};
    fused_newton_roots(x);
    _mm256_storeu_ps(values + i, x[0]);
    _mm256_storeu_ps(values + i + 8, x[1]);
  }
}

[[gnu::target("avx2")]] void by_rsqrt(float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    __m256 x[] = {_mm256_loadu_ps(values + i), _mm256_loadu_ps(values + i + 8)};
    newton_roots(x);
    _mm256_storeu_ps(values + i, x[0]);
    _mm256_storeu_ps(values + i + 8, x[1]);
  }
}

#endif

}  // namespace

std::span<const OwnRoots> own_roots() {
  static const std::vector<OwnRoots> roots = [] {
    std::vector<OwnRoots> found;
#ifdef __x86_64__
    if (cpu_level() == CpuLevel::Avx512) found.push_back({RootSequence::Estimate14, by_rsqrt14});
    if (cpu_level() != CpuLevel::Baseline) {
      found.push_back({RootSequence::FusedNewton, by_rsqrt_fused});
      found.push_back({RootSequence::Newton, by_rsqrt});
    }
#endif
    found.push_back({RootSequence::Rounded, correctly_rounded});
    return found;
  }();
  return roots;
}

}  // namespace optim
