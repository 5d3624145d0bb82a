#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ckpt/dtype.h>
#include <ckpt/rounding.h>

// One element of float32, bfloat16 or float16, as float and back, rounded to nearest.
namespace optim {

inline float float_at(ckpt::DType type, const std::byte* at) {
  if (type == ckpt::DType::Float32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return ckpt::widened(type, bits);
}

inline void put_float(float value, ckpt::DType type, std::byte* out) {
  if (type == ckpt::DType::Float32) {
    std::memcpy(out, &value, sizeof value);
    return;
  }
  const uint16_t bits = type == ckpt::DType::BFloat16 ? ckpt::round_to_bfloat16(value)
                                                      : ckpt::round_to_float16(value);
  std::memcpy(out, &bits, sizeof bits);
}

// Calls visit with the type as a constant, so that loops over elements need not ask for it.
template <class Visit>
void with_constant(ckpt::DType type, const Visit& visit) {
  using ckpt::DType;
  if (type == DType::Float32) return visit(std::integral_constant<DType, DType::Float32>());
  if (type == DType::BFloat16) return visit(std::integral_constant<DType, DType::BFloat16>());
  visit(std::integral_constant<DType, DType::Float16>());
}

}  // namespace optim
