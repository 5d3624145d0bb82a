#pragma once

#include <cstdint>

#include <ckpt/rounding.h>

// Whether a 16-bit weight is its master, rounded; weights are compared as if all NaNs were those
// that a CPU makes.
namespace optim {

using ckpt::kBFloat16NaN, ckpt::kFloat16NaN;
using ckpt::round_to_bfloat16, ckpt::round_to_float16, ckpt::widened, ckpt::widened_float16;

inline uint16_t with_one_nan_bfloat16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7F80 ? kBFloat16NaN : weight;
}
inline uint16_t with_one_nan_float16(uint16_t weight) {
  return (weight & 0x7FFF) > 0x7C00 ? kFloat16NaN : weight;
}

inline bool rounds_to_bfloat16(float master, uint16_t weight) {
  return round_to_bfloat16(master) == with_one_nan_bfloat16(weight);
}
inline bool rounds_to_float16(float master, uint16_t weight) {
  return round_to_float16(master) == with_one_nan_float16(weight);
}

}  // namespace optim
