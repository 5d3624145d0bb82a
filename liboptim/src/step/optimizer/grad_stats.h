#pragma once

#include <span>

#include <optim/optimizer.h>

namespace optim {

// What a parameter adds to the global norm and the zero count: nothing if it has no gradient, is
// the second copy of a shared weight, or is held by another tensor-parallel rank, too, which counts
// it (`is_duplicate`, set by the layer-wise optimizer). A gradient that is not finite always shows.
double square_sum_for_norm(const OptimizedParam& param);
int64_t zeros_in_grad(const OptimizedParam& param, double grad_scale);  // of fp32(grad * scale)

// sqrt of the sum, in the order given: by parameter id, whoever owns them.
double norm_of(std::span<const double> square_sums);

}  // namespace optim
