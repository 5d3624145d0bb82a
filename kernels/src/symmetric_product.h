#pragma once

#include <memory>

#include "lt_matmul.h"

namespace kernels {

// d = alpha op(a) op(b) + beta c where c and d are symmetric: how much of d is computed, and how
// the rest is filled in, is up to the implementation. Queues on a stream, allocates nothing, waits
// for nothing, can be captured.
class SymmetricProduct {
 public:
  virtual ~SymmetricProduct() = default;
  // Of which buffers queue() will be told, but that `iterate` and `next` may change places there.
  virtual cudaError_t bind(const NewtonSchulzBuffers& /*buffers*/) { return cudaSuccess; }
  virtual cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                               cudaStream_t stream) const = 0;
};

// Of which batch, which product, the edge of its blocks (0: whole), and by whom it is computed.
struct SymmetricRequest {
  const NewtonSchulzShape& shape;
  const NsProduct& whole;
  int64_t block;
  SymmetricBy by;
};

// The whole of it by cuBLASLt, or the blocks on and below the diagonal and their mirror, or all by
// a kernel of our own (symmetric_plan.h says which).
cublasStatus_t make_symmetric_product(cublasLtHandle_t handle, const SymmetricRequest& request,
                                      std::unique_ptr<SymmetricProduct>& product);

}  // namespace kernels
