#pragma once

#include <memory>

#include "lt_matmul.h"

namespace kernels {

// d = alpha op(a) op(b) + beta c where c and d are symmetric: how much of d is computed, and how
// the rest is filled in, is up to the implementation. Queues on a stream, allocates nothing, waits
// for nothing, can be captured. A kernel of our own that writes each tile to both places would be
// one more of these.
class SymmetricProduct {
 public:
  virtual ~SymmetricProduct() = default;
  virtual cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                               cudaStream_t stream) const = 0;
};

// Of which batch, which product, and the edge of its blocks; 0: whole.
struct SymmetricRequest {
  const NewtonSchulzShape& shape;
  const NsProduct& whole;
  int64_t block;
};

// The whole of it by cuBLASLt, or the blocks on and below the diagonal and their mirror
// (symmetric_plan.h says which).
cublasStatus_t make_symmetric_product(cublasLtHandle_t handle, const SymmetricRequest& request,
                                      std::unique_ptr<SymmetricProduct>& product);

}  // namespace kernels
