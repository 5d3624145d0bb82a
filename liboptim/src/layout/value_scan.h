#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

namespace optim {

// True for the types that scan() reads: float32, bfloat16, float16.
bool is_scanned(ckpt::DType dtype);

enum class Wanted : uint8_t { Anything, Finite, FiniteAndNotNegative };  // each includes the former

// How many elements are not as wanted.
struct ValueScan {
  uint64_t not_finite_count = 0;
  uint64_t negative_count = 0;  // below zero; minus zero is not
};
ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted);

}  // namespace optim
