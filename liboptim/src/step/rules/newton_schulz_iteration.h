#pragma once

#include <functional>

#include <optim/newton_schulz.h>

// What Newton-Schulz of a whole matrix and of one that ranks share have in common.
namespace optim {

// Throws what newton_schulz() throws.
void check_newton_schulz(const at::Tensor& x, const NewtonSchulzOptions& options);

// The steps on `wide` (contiguous fp32), or on this rank's columns of it. `square_sum`: of the
// elements of the whole matrix; `whole_gram`: x x^T of the whole, of this rank's. Gives fp32.
at::Tensor iterate(const at::Tensor& wide, double square_sum, const NewtonSchulzOptions& options,
                   const std::function<at::Tensor(at::Tensor)>& whole_gram);

}  // namespace optim
