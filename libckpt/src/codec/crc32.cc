#include "codec/crc32.h"

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ckpt {

namespace {

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

}  // namespace ckpt
