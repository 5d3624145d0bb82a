#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace optim {

// Sum of squares of a contiguous fp32 or bf16 tensor on the CPU, in fp64 and in an order that
// depends on the number of elements only: blocks of 2^14 elements, 16 running sums in each.
double sum_of_squares(const at::Tensor& tensor);

// Elements equal to zero; -0 is one, NaN is none.
int64_t count_zeros(const at::Tensor& tensor);

}  // namespace optim
