#include "codec/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>

#endif

namespace ckpt {

#if defined(__x86_64__)

namespace {

constexpr size_t kVectors = 4;  // enough that no product waits for the one before
static_assert(kVectors * sizeof(__m256i) == kFoldedBytes);

// Moves one half of 128 bits over what is folded onto it. A product of reflected numbers is one
// bit short, hence the shift; the halves lie 32 bits before and behind the middle.
constexpr int64_t mover(int64_t distance_bytes) {
  return static_cast<int64_t>(uint64_t{crc_moved(kCrcOne, uint64_t(distance_bytes))} << 1);
}
constexpr int64_t kMoveFirstHalf = mover(kFoldedBytes + 4);
constexpr int64_t kMoveSecondHalf = mover(kFoldedBytes - 4);

__attribute__((target("vpclmulqdq,avx2"))) inline __m256i load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

}  // namespace

bool can_fold() { return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2"); }

__attribute__((target("vpclmulqdq,avx2"))) FoldedBytes fold(std::span<const std::byte> bytes,
                                                            uint32_t state) {
  const __m256i movers =
      _mm256_set_epi64x(kMoveSecondHalf, kMoveFirstHalf, kMoveSecondHalf, kMoveFirstHalf);
  __m256i folded[kVectors];
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) folded[i] = load(bytes.data() + i * sizeof(__m256i));
  folded[0] = _mm256_xor_si256(folded[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(int(state))));
  for (size_t at = kFoldedBytes; at < bytes.size(); at += kFoldedBytes) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i first = _mm256_clmulepi64_epi128(folded[i], movers, 0x00);
      const __m256i second = _mm256_clmulepi64_epi128(folded[i], movers, 0x11);
      const __m256i next = load(bytes.data() + at + i * sizeof(__m256i));
      folded[i] = _mm256_xor_si256(_mm256_xor_si256(first, second), next);
    }
  }
  FoldedBytes result;
#pragma GCC unroll 4
  for (size_t i = 0; i < kVectors; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(result.data()) + i, folded[i]);
  }
  return result;
}

#else

bool can_fold() { return false; }
FoldedBytes fold(std::span<const std::byte>, uint32_t) { return {}; }

#endif

}  // namespace ckpt
