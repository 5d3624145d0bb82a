#pragma once

#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <kernels/newton_schulz_products.h>

namespace kernels {

// cuBLASLt's algorithms for one shape, chosen once. prepare() needs a device and asks cuBLASLt's
// heuristic; run() queues the products of each step on `stream`, allocates nothing, waits for
// nothing, and can be captured. Split sums are added in fp32 in a fixed order, so results do not
// vary from run to run.
class NewtonSchulz {
 public:
  // cudaErrorInvalidValue for sizes below 1 or a type that cannot be; cudaErrorNotSupported where
  // cuBLASLt has no algorithm for the shape.
  cudaError_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape);
  cudaError_t run(const NewtonSchulzBuffers& buffers, const NewtonSchulzCoefficients* coefficients,
                  int steps, cudaStream_t stream) const;

 private:
  struct Matmul {
    NsProduct product;
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
  };
  cublasStatus_t describe(const NsProduct& product, Matmul& matmul) const;
  cublasStatus_t choose(Matmul& matmul) const;
  cublasStatus_t make_matmul(const NsProduct& product, Matmul& matmul) const;
  // By value: cuBLASLt takes descriptors that are not const, and run() may be called from many
  // threads.
  cublasStatus_t multiply(Matmul matmul, NsScaling scaling, const NewtonSchulzBuffers& buffers,
                          cudaStream_t stream) const;
  // Gram or polynomial: blocks, then the mirror. A kernel of our own for symmetric products, which
  // writes each tile to both places, takes the place of this function.
  cublasStatus_t multiply_symmetric(const std::vector<Matmul>& blocks, NsScaling scaling,
                                    const NewtonSchulzBuffers& buffers, cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  NewtonSchulzShape shape_ = {};
  std::vector<Matmul> gram_, polynomial_;
  Matmul update_ = {};
};

}  // namespace kernels
