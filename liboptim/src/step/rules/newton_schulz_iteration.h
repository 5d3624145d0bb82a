#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <optim/newton_schulz.h>

// What Newton-Schulz of a whole matrix and of one that ranks share have in common.
namespace optim {

// Throws what newton_schulz() throws.
void check_newton_schulz(const at::Tensor& x, const NewtonSchulzOptions& options);

// A wide matrix, of which this rank may have some columns.
struct WholeMatrix {
  int64_t columns;                             // of all ranks
  double square_sum;                           // of the elements of all ranks
  std::function<at::Tensor(at::Tensor)> gram;  // x x^T of the whole, of this rank's
};

// The steps on `wide` (contiguous fp32), or on this rank's columns of it. Gives fp32.
at::Tensor iterate(const at::Tensor& wide, const WholeMatrix& whole,
                   const NewtonSchulzOptions& options);

// The same steps on the Gram matrix; `x` is normalised, in the type of the products.
at::Tensor iterate_on_gram(at::Tensor x, const WholeMatrix& whole,
                           const std::vector<NewtonSchulzStep>& steps);

}  // namespace optim
