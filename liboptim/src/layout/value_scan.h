#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

// Passes over the elements of a tensor, piece by piece, in any order.
namespace optim {

// True for the types that scan() reads: float32, bfloat16, float16.
bool is_scanned(ckpt::DType dtype);

struct ValueScan {
  uint64_t not_finite_count = 0;
  uint64_t negative_count = 0;  // below zero; minus zero is not
};
ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes);

// What two tensors have in common when their 16-bit elements are equal, and else only by a chance
// of about 2^-64: a sum over all elements, so that pieces add up in any order. `first`: index of
// the piece's first element.
uint64_t fingerprint(std::span<const std::byte> elements_of_16_bits, uint64_t first);
// The same of float32 elements rounded to `dtype`, bfloat16 or float16.
uint64_t fingerprint_rounded(std::span<const std::byte> float32_elements, ckpt::DType dtype,
                             uint64_t first);

}  // namespace optim
