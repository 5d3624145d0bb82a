#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <kernels/newton_schulz_products.h>
#include <kernels/symmetric_plan.h>

#include <utility>

// One of Newton-Schulz's products by cuBLASLt.
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

// Descriptions of the operands and cuBLASLt's algorithm, chosen once.
class LtMatmul {
 public:
  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape,
                         const NsProduct& product);
  // What a block of threads computes, by the algorithm; the usual one where it does not say.
  ProductTile tile() const;
  cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                       cudaStream_t stream) const;
  const NsProduct& product() const { return product_; }

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

}  // namespace kernels
