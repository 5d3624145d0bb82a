// Newton-Schulz's products: by cuBLASLt, and symmetric ones of which half is computed.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include <kernels/newton_schulz_products.h>
#include <kernels/symmetric_plan.h>

namespace kernels {

// The first failure of a row of cuBLASLt's calls.
class BlasStatus {
 public:
  template <class Call>
  BlasStatus& then(Call&& call) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = std::forward<Call>(call)();
    return *this;
  }
  cublasStatus_t get() const { return status_; }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

cudaError_t as_cuda_error(cublasStatus_t status);

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

// One product, in full. Descriptions of the operands and cuBLASLt's algorithm, chosen once.
class LtMatmul final : public SymmetricProduct {
 public:
  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape,
                         const NsProduct& product);
  // What a block of threads computes, by the algorithm; the usual one where it does not say.
  ProductTile tile() const;
  cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                       cudaStream_t stream) const override;

 private:
  cublasStatus_t describe(const NewtonSchulzShape& shape);
  cublasStatus_t choose(const NewtonSchulzShape& shape);

  cublasLtHandle_t handle_ = nullptr;
  ElementType type_ = ElementType::None;
  NsProduct product_ = {};
  cublasLtMatmulDescOpaque_t operation_ = {};
  cublasLtMatrixLayoutOpaque_t a_ = {}, b_ = {}, d_ = {};
  cublasLtMatmulAlgo_t algorithm_ = {};
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
