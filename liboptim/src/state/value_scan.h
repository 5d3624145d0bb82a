#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

namespace optim {

// True for the types that scan() reads: float32, bfloat16, float16.
bool is_scanned(ckpt::DType dtype);

enum class Wanted : uint8_t { Anything, Finite, FiniteAndNotNegative };  // each includes the former

// How many elements are not as wanted, and which is the first of them; of several parts the counts
// add up.
struct Unwanted {
  uint64_t count = 0, first = 0;

  // Of a part that starts with element `offset`.
  void add(const Unwanted& part, uint64_t offset);
};

struct ValueScan {
  Unwanted nan, infinite;
  Unwanted negative;  // below zero; minus zero is not

  void add(const ValueScan& part, uint64_t offset);
};
ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted);

}  // namespace optim
