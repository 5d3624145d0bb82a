#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Floats of 8 and 16 bits from fp32 and back, as CUDA's headers convert them; written from the
// formats' definitions, and compared with those headers where a toolkit is found
// (tests/kernels/narrow_floats_test.cc).
namespace emulation {

// An IEEE-like format: a sign, exponent bits with this bias, mantissa bits.
struct NarrowFormat {
  int mantissa_bits, exponent_bias;
  uint32_t sign, largest, beyond, nan;  // beyond: what rounds to more than the largest
};
constexpr NarrowFormat kHalf = {10, 15, 0x8000, 0x7BFF, 0x7C00, 0x7FFF};
constexpr NarrowFormat kE4M3 = {3, 7, 0x80, 0x7E, 0x7E, 0x7F};  // saturates

// To nearest, ties to even. NaN is the format's one NaN.
inline uint32_t narrowed(float value, const NarrowFormat& format) {
  if (std::isnan(value)) return format.nan;
  const uint32_t sign = std::signbit(value) ? format.sign : 0;
  if (value == 0) return sign;
  if (std::isinf(value)) return sign | format.beyond;
  int exponent = 0;  // |value| is a fraction in [0.5, 1) times 2^exponent
  const double fraction = std::frexp(std::fabs(static_cast<double>(value)), &exponent);
  const int biased = std::max(exponent - 1 + format.exponent_bias, 1);
  // In units of the last place, of subnormals where the exponent is at its least.
  const double units =
      std::ldexp(fraction, exponent - (biased - format.exponent_bias) + format.mantissa_bits);
  const auto rounded = static_cast<uint32_t>(std::nearbyint(units));
  const uint32_t bits = (static_cast<uint32_t>(biased - 1) << format.mantissa_bits) + rounded;
  return sign | (bits > format.largest ? format.beyond : bits);
}

// Exact; `bits` is finite in the format.
inline float widened(uint32_t bits, const NarrowFormat& format) {
  const uint32_t magnitude = bits & (format.sign - 1);
  const auto biased = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t one = 1U << format.mantissa_bits;
  const uint32_t mantissa = (magnitude & (one - 1)) + (biased > 0 ? one : 0);
  const int exponent = std::max(biased, 1) - format.exponent_bias - format.mantissa_bits;
  const float value = std::ldexp(static_cast<float>(mantissa), exponent);
  return (bits & format.sign) != 0 ? -value : value;
}

inline uint32_t bf16_of(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

inline uint32_t half_of(float value) { return narrowed(value, kHalf); }
inline float float_of_half(uint32_t bits) {
  if ((bits & 0x7FFF) > 0x7C00) return std::bit_cast<float>(0x7FFFFFFFU);
  if ((bits & 0x7FFF) == 0x7C00) return (bits & 0x8000) != 0 ? -INFINITY : INFINITY;
  return widened(bits, kHalf);
}

inline uint32_t e4m3_of(float value) { return narrowed(value, kE4M3); }
inline float float_of_e4m3(uint32_t bits) {
  if ((bits & 0x7F) == 0x7F) return std::bit_cast<float>(0x7FFFFFFFU);
  return widened(bits, kE4M3);
}

}  // namespace emulation
