#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

namespace optim {

// True for the types that scan() reads: all of floating point, complex ones among them. Which are
// negative it says of float64, float32, bfloat16 and float16 alone.
bool is_scanned(ckpt::DType dtype);

// Each includes the former; Remainder, of float32 alone, is an integer of 16 bits.
enum class Wanted : uint8_t { Anything, Finite, FiniteAndNotNegative, Remainder };

// How many elements are not as wanted, and which is the first of them; of several parts the counts
// add up.
struct Unwanted {
  uint64_t count = 0, first = 0;

  // Of a part that starts with element `offset`.
  void add(const Unwanted& part, uint64_t offset);
};

struct ValueScan {
  Unwanted nan, infinite;
  Unwanted negative;       // below zero; minus zero is not
  Unwanted not_remainder;  // looked for instead of the others

  void add(const ValueScan& part, uint64_t offset);
};
ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted);

}  // namespace optim
