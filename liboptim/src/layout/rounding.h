#pragma once

#include <bit>
#include <cstdint>

namespace optim {

// Round to nearest, ties to even, as torch converts float32. A NaN becomes 0x7FC0 (with c10's sign
// dropped) in bfloat16.
inline uint16_t round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The same for IEEE half precision, subnormals included; a NaN becomes a quiet one of its sign.
uint16_t round_to_float16(float value);

}  // namespace optim
