#pragma once

#include <bit>
#include <cstdint>

#include <ckpt/dtype.h>

namespace optim {

// Which NaN a conversion to 16 bits leaves depends on who converts: 0x7FC0 on a CPU, 0x7FFF on a
// GPU, with or without the sign. Weights are compared as if all were these.
inline constexpr uint16_t kBFloat16NaN = 0x7FC0, kFloat16NaN = 0x7E00;

inline uint16_t with_one_nan_bfloat16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7F80 ? kBFloat16NaN : weight;
}
inline uint16_t with_one_nan_float16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7C00 ? kFloat16NaN : weight;
}

// Round to nearest, ties to even, as torch converts float32.
inline uint16_t round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return kBFloat16NaN;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The same for IEEE half precision, subnormals included.
uint16_t round_to_float16(float value);

// The value of IEEE half precision bits.
float widened_float16(uint16_t bits);
// Of float16 or bfloat16 bits.
inline float widened(ckpt::DType dtype, uint16_t bits) {
  return dtype == ckpt::DType::Float16 ? widened_float16(bits)
                                       : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline bool rounds_to_bfloat16(float master, uint16_t weight) {
  return round_to_bfloat16(master) == with_one_nan_bfloat16(weight);
}
inline bool rounds_to_float16(float master, uint16_t weight) {
  return round_to_float16(master) == with_one_nan_float16(weight);
}

}  // namespace optim
