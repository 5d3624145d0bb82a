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

// What two weights of one shape have in common only when all their bits are equal, but for chance
// (2^-64) and but for which NaN a NaN is (remainders.h): a sum over pairs of words of four weights,
// each pair mixed with its place, so that parts may be summed in any order. A part starts at a
// whole pair, and ends at one or at the weight's end.
inline constexpr uint64_t kWeightsPerPair = 8;

// Of bfloat16, float16 or, where masters are copies, float32 weights; `first`: which of the
// weight's elements is the part's first.
uint64_t sum_of_weights(std::span<const std::byte> weights, uint64_t first,
                        ckpt::DType dtype = ckpt::DType::BFloat16);
// Of the weights that these float32 masters round to.
uint64_t sum_of_masters(std::span<const std::byte> masters, uint64_t first,
                        ckpt::DType weights = ckpt::DType::BFloat16);

}  // namespace optim
