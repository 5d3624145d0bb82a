#include "codec/crc32.h"

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>

namespace ckpt {

namespace {

// A checksum is a polynomial over GF(2) modulo P; bit 31 is the coefficient of x^0.
constexpr uint32_t kP = 0xEDB88320;
constexpr uint32_t kOne = 0x80000000;
constexpr uint32_t kX8 = kOne >> 8;  // x^8: one byte further

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kP : 0);  // b * x
  }
  return product;
}

// x^(8 * 2^k) for every k: the steps of a fast exponentiation.
constexpr std::array<uint32_t, 64> kPowers = [] {
  std::array<uint32_t, 64> powers = {};
  uint32_t power = kX8;
  for (uint32_t& entry : powers) {
    entry = power;
    power = multiply(power, power);
  }
  return powers;
}();

// ISA-L's AVX-512 code leaves the upper halves of vector registers in use. SSE code, which most of
// a program is, then runs at a quarter of its speed (docs/decisions/0071).
#if defined(__x86_64__)
__attribute__((target("avx"))) void zero_upper_halves() { _mm256_zeroupper(); }
void free_vector_registers() {
  if (__builtin_cpu_supports("avx")) zero_upper_halves();
}
#else
void free_vector_registers() {}
#endif

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  if (bytes.empty()) return crc;
  crc = crc32_gzip_refl(crc, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  free_vector_registers();
  return crc;
}

// Appending n bytes multiplies what came before by x^(8n).
uint32_t crc32_before(uint32_t crc, uint64_t count_bytes) {
  for (size_t k = 0; count_bytes != 0; count_bytes >>= 1, ++k) {
    if (count_bytes & 1) crc = multiply(crc, kPowers[k]);
  }
  return crc;
}

uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_count_bytes) {
  return crc32_before(first, second_count_bytes) ^ second;
}

}  // namespace ckpt
