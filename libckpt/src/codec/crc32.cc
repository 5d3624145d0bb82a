#include "codec/crc32.h"

#include <libdeflate.h>

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

constexpr uint32_t x8_to_the(uint64_t exponent) {
  uint32_t result = kOne;
  for (uint32_t power = kX8; exponent != 0; exponent >>= 1, power = multiply(power, power)) {
    if (exponent & 1) result = multiply(result, power);
  }
  return result;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  // libdeflate takes a null pointer as "give me the initial value".
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

// Appending n bytes multiplies what came before by x^(8n); the rest is linear.
uint32_t crc32_of_both(uint32_t first, uint32_t second, uint64_t second_count_bytes) {
  return multiply(first, x8_to_the(second_count_bytes)) ^ second;
}

}  // namespace ckpt
