#include "codec/crc32.h"

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ckpt {
namespace {

// A CRC-32 is a polynomial over GF(2) modulo P = 0x04C11DB7, x^32 left out; bit 31 is the
// coefficient of x^0.
constexpr uint32_t kCrcP = 0xEDB88320;
constexpr uint32_t kCrcOne = 0x80000000;
constexpr uint32_t kCrcX8 = kCrcOne >> 8;  // x^8: one byte further

constexpr uint32_t crc_product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kCrcOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kCrcP : 0);  // b * x
  }
  return product;
}

// x^(8 * 2^k) for every k: the steps of a fast exponentiation.
constexpr std::array<uint32_t, 64> kCrcPowers = [] {
  std::array<uint32_t, 64> powers = {};
  uint32_t power = kCrcX8;
  for (uint32_t& entry : powers) {
    entry = power;
    power = crc_product(power, power);
  }
  return powers;
}();

// a * x^(8 * count_bytes): `a` with so many bytes after it.
constexpr uint32_t crc_moved(uint32_t a, uint64_t count_bytes) {
  for (size_t k = 0; count_bytes != 0; count_bytes >>= 1, ++k) {
    if (count_bytes & 1) a = crc_product(a, kCrcPowers[k]);
  }
  return a;
}

// ISA-L's AVX-512 code leaves the upper halves of vector registers in use. SSE code, which most of
// a program is, then runs at a quarter of its speed (docs/why/reading.md).
#if defined(__x86_64__)
__attribute__((target("avx"))) void zero_upper_halves() { _mm256_zeroupper(); }
void free_vector_registers() {
  if (__builtin_cpu_supports("avx")) zero_upper_halves();
}
#else
void free_vector_registers() {}
#endif

// The same as zlib's crc32().
uint32_t crc32_of_isal(const void* bytes, size_t count_bytes, uint32_t crc) {
  return crc32_gzip_refl(crc, static_cast<const uint8_t*>(bytes), count_bytes);
}

// Without AVX-512 ISA-L has 128 bits in hand at a time, where many processors could take 256.
bool folding_is_faster() {
#if defined(__x86_64__)
  static const bool kIsFaster = can_fold() && !__builtin_cpu_supports("avx512vl");
  return kIsFaster;
#else
  return false;
#endif
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  if (bytes.empty()) return crc;
  if (bytes.size() > kFoldedBytes && folding_is_faster()) {
    const size_t tail_bytes = bytes.size() % kFoldedBytes;
    const FoldedBytes folded = fold(bytes.first(bytes.size() - tail_bytes), ~crc);
    crc = crc32_of_isal(folded.data(), folded.size(), ~0U);
    bytes = bytes.last(tail_bytes);
  }
  crc = crc32_of_isal(bytes.data(), bytes.size(), crc);
  free_vector_registers();
  return crc;
}

uint32_t crc32_before(uint32_t crc, uint64_t count_bytes) { return crc_moved(crc, count_bytes); }

uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_count_bytes) {
  return crc32_before(first, second_count_bytes) ^ second;
}

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
