#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ckpt/dtype.h>

// float32 from and to 16 bits of floating point, as torch converts on a CPU.
namespace ckpt {

// Which NaN a conversion to 16 bits leaves depends on who converts: 0x7FC0 on a CPU, 0x7FFF on a
// GPU, with or without the sign. These are left here.
inline constexpr uint16_t kBFloat16NaN = 0x7FC0, kFloat16NaN = 0x7E00;

// Round to nearest, ties to even.
inline uint16_t round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto rounded = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  return value != value ? kBFloat16NaN : rounded;
}

// The same for IEEE half precision, subnormals included.
uint16_t round_to_float16(float value);

// The value of IEEE half precision bits.
inline float widened_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  constexpr uint32_t kRebias = uint32_t{127 - 15} << 23;
  const uint32_t special = magnitude >= 0x7C00 ? kRebias : 0;  // infinity and NaN: all ones
  const uint32_t normal = (magnitude << 13) + kRebias + special;
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  return std::bit_cast<float>(sign | (magnitude < 0x0400 ? subnormal : normal));
}
// Of float16 or bfloat16 bits.
inline float widened(DType dtype, uint16_t bits) {
  return dtype == DType::Float16 ? widened_float16(bits)
                                 : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Of float32, float16 and bfloat16, as they lie in memory.
inline float float_at(DType type, const std::byte* at) {
  if (type == DType::Float32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return widened(type, bits);
}

inline void put_float(float value, DType type, std::byte* out) {
  if (type == DType::Float32) {
    std::memcpy(out, &value, sizeof value);
    return;
  }
  const uint16_t bits =
      type == DType::BFloat16 ? round_to_bfloat16(value) : round_to_float16(value);
  std::memcpy(out, &bits, sizeof bits);
}

// Calls visit with the type as a constant, so that loops over elements need not ask for it.
template <class Visit>
void with_constant(DType type, const Visit& visit) {
  if (type == DType::Float32) return visit(std::integral_constant<DType, DType::Float32>());
  if (type == DType::BFloat16) return visit(std::integral_constant<DType, DType::BFloat16>());
  visit(std::integral_constant<DType, DType::Float16>());
}

}  // namespace ckpt
