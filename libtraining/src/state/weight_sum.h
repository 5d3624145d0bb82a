#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

namespace optim {

// What two weights of one shape have in common only when all their bits are equal, but for chance
// (2^-64) and but for which NaN a NaN is (rounding.h): a sum over pairs of words of four weights,
// each pair mixed with its place, so that parts may be summed in any order. A part starts at a
// whole pair, and ends at one or at the weight's end.
inline constexpr uint64_t kWeightsPerPair = 8;

// Of bfloat16 or float16 weights; `first`: which of the weight's elements is the part's first.
uint64_t sum_of_weights(std::span<const std::byte> weights, uint64_t first,
                        ckpt::DType dtype = ckpt::DType::BFloat16);
// Of the bfloat16 or float16 weights that these float32 masters round to.
uint64_t sum_of_masters(std::span<const std::byte> masters, uint64_t first,
                        ckpt::DType weights = ckpt::DType::BFloat16);

}  // namespace optim
