#pragma once

#include <bit>
#include <cstdint>

namespace optim {

// The bf16 nearest to a float, ties to even; NaN is LibTorch's.
[[gnu::always_inline]] inline uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<uint16_t>(is_nan ? 0x7FC0U : nearest);
}

}  // namespace optim
