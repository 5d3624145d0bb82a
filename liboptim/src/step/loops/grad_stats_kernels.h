#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include <optim/export.h>

namespace optim {

// Of contiguous fp32, bf16 or fp16 tensors on the CPU, else Error(InvalidArgument). Sums are fp64
// in an order that depends on the number of elements only: blocks of 2^14 elements, 16 running sums
// in each.
OPTIM_EXPORT double sum_of_squares(const at::Tensor& tensor);
// A part of such a block of a larger tensor: what sum_of_squares() has before and after it.
inline constexpr int64_t kStatsBlockElements = int64_t{1} << 14;
struct BlockSums {
  std::array<double, 16> lanes = {};
  // Elements `first`, `first` + 1, ... of the block.
  void add_squares(const at::Tensor& values, int64_t first);
  double total() const;
};

// Elements of fp32(tensor * scale) equal to zero; -0 is one, NaN is none.
int64_t count_zeros(const at::Tensor& tensor, float scale);

}  // namespace optim
