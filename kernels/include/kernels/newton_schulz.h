#pragma once

#include <memory>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <kernels/newton_schulz_products.h>
#include <kernels/symmetric_plan.h>

namespace kernels {

// Fills gram_block, polynomial_block and by whom they are computed by plan_symmetric(), with the
// tiles that cuBLASLt's algorithms for the whole products have. Errors as prepare().
cudaError_t choose_blocks(cublasLtHandle_t handle, const DeviceRates& rates,
                          NewtonSchulzShape& shape);

// cuBLASLt's algorithms for one shape, chosen once. prepare() needs a device and asks cuBLASLt's
// heuristic; run() queues the products of each step on `stream`, allocates nothing, waits for
// nothing, and can be captured. Split sums are added in fp32 in a fixed order, so results do not
// vary from run to run.
class NewtonSchulz {
 public:
  NewtonSchulz();
  NewtonSchulz(NewtonSchulz&&) noexcept;
  NewtonSchulz& operator=(NewtonSchulz&&) noexcept;
  ~NewtonSchulz();
  // cudaErrorInvalidValue for sizes below 1 or a type that cannot be; cudaErrorNotSupported where
  // cuBLASLt has no algorithm for the shape.
  cudaError_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape);
  // The buffers of all runs that follow: what a kernel must be told of their addresses is made
  // here. Needed where the shape says that another than cuBLASLt computes symmetric products.
  cudaError_t bind(const NewtonSchulzBuffers& buffers);
  // cudaErrorInvalidValue for others than those that were bound, where they must be.
  cudaError_t run(const NewtonSchulzBuffers& buffers, const NewtonSchulzCoefficients* coefficients,
                  int steps, cudaStream_t stream) const;

 private:
  struct Products;
  std::unique_ptr<Products> products_;
};

}  // namespace kernels
