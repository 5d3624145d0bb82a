#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckpt {

// A CRC-32 is a polynomial over GF(2) modulo P = 0x04C11DB7, x^32 left out; bit 31 is the
// coefficient of x^0.
inline constexpr uint32_t kCrcP = 0xEDB88320;
inline constexpr uint32_t kCrcOne = 0x80000000;
inline constexpr uint32_t kCrcX8 = kCrcOne >> 8;  // x^8: one byte further

constexpr uint32_t crc_product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kCrcOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kCrcP : 0);  // b * x
  }
  return product;
}

// x^(8 * 2^k) for every k: the steps of a fast exponentiation.
inline constexpr std::array<uint32_t, 64> kCrcPowers = [] {
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

}  // namespace ckpt
