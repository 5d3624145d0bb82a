#include "symmetric_product.h"

#include <vector>

#include <kernels/symmetric.h>

namespace kernels {
namespace {

class WholeProduct final : public SymmetricProduct {
 public:
  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape,
                         const NsProduct& whole) {
    return matmul_.prepare(handle, shape, whole);
  }
  cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                       cudaStream_t stream) const override {
    return matmul_.queue(scaling, buffers, stream);
  }

 private:
  LtMatmul matmul_;
};

class ProductInBlocks final : public SymmetricProduct {
 public:
  ProductInBlocks(const NewtonSchulzShape& shape, const NsProduct& whole, int64_t block)
      : result_(whole.d),
        mirror_{nullptr, shape.type, whole.m, shape.batch, block},
        parts_(blocks_of(whole, block)),
        matmuls_(parts_.size()) {}

  cublasStatus_t prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape) {
    BlasStatus status;
    for (size_t i = 0; i < parts_.size(); ++i) {
      status.then([&] { return matmuls_[i].prepare(handle, shape, parts_[i]); });
    }
    return status.get();
  }

  cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                       cudaStream_t stream) const override {
    BlasStatus status;
    for (const LtMatmul& matmul : matmuls_) {
      status.then([&] { return matmul.queue(scaling, buffers, stream); });
    }
    MirrorRequest mirror = mirror_;
    mirror.matrices = buffer_of(buffers, result_);
    return status
        .then([&] {
          return mirror_blocks(mirror, stream) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
        })
        .get();
  }

 private:
  NsOperand result_;
  MirrorRequest mirror_;
  std::vector<NsProduct> parts_;
  std::vector<LtMatmul> matmuls_;
};

}  // namespace

cublasStatus_t make_symmetric_product(cublasLtHandle_t handle, const SymmetricRequest& request,
                                      std::unique_ptr<SymmetricProduct>& product) {
  const auto& [shape, whole, block] = request;
  if (block == 0 || block >= whole.m) {
    auto made = std::make_unique<WholeProduct>();
    const cublasStatus_t status = made->prepare(handle, shape, whole);
    product = std::move(made);
    return status;
  }
  auto made = std::make_unique<ProductInBlocks>(shape, whole, block);
  const cublasStatus_t status = made->prepare(handle, shape);
  product = std::move(made);
  return status;
}

}  // namespace kernels
