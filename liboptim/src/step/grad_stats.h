#pragma once

#include <span>

#include <optim/optimizer.h>

namespace optim {

// What a parameter adds to the global norm and the zero count: nothing if it has no gradient or is
// the second copy of a shared weight.
double square_sum_for_norm(const OptimizedParam& param);
int64_t zeros_in_grad(const OptimizedParam& param);

// sqrt of the sum, in the order given: by parameter id, whoever owns them.
double norm_of(std::span<const double> square_sums);

}  // namespace optim
