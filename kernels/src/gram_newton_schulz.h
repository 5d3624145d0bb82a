#pragma once

#include <memory>

#include "lt_matmul.h"
#include "symmetric_product.h"

namespace kernels {

// Newton-Schulz on the Gram matrix R = X X^T of a batch, for NewtonSchulz: with p = b R + c R R a
// step is R = (a + p) R (a + p), and the steps of a pass together multiply X by identity + factor.
// Multiples of the identity are kept apart, where they are exact. All square products are
// symmetric, since polynomials of one matrix commute.
class GramNewtonSchulz {
 public:
  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape);
  cudaError_t run(NewtonSchulzBuffers buffers, const NewtonSchulzCoefficients* coefficients,
                  int steps, cudaStream_t stream) const;

 private:
  class Pass;

  NewtonSchulzShape shape_ = {};
  std::unique_ptr<SymmetricProduct> gram_, polynomial_, half_, next_gram_, factor_;
  LtMatmul update_;
};

}  // namespace kernels
