#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include <optim/export.h>

namespace optim {

// Statistics of gradients: contiguous fp32, bf16 or fp16 tensors on the CPU. Sums are fp64 in an
// order that depends on the number of elements alone.

// The norm_type-norm over all elements of all tensors; infinity: the largest magnitude. Throws
// Error(InvalidArgument) for other tensors and for a norm_type that is not positive.
double grad_norm(std::span<const at::Tensor> grads, double norm_type = 2);

// Elements equal to zero; -0 is one, NaN is none.
int64_t count_zeros(std::span<const at::Tensor> grads);

// coeff = max_norm / (total_norm + 1e-6); gradients shrink by it where it is below 1.
OPTIM_EXPORT double clip_coefficient(double max_norm, double total_norm);

}  // namespace optim
