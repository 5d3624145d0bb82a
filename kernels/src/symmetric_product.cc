#include "symmetric_product.h"

#include <utility>
#include <vector>

#include <kernels/mirrored_product.h>
#include <kernels/multi_tensor_update.h>
#include <kernels/symmetric.h>

#include "call_status.h"

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

cublasStatus_t as_blas_status(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return CUBLAS_STATUS_SUCCESS;
    case cudaErrorInvalidValue: return CUBLAS_STATUS_INVALID_VALUE;
    case cudaErrorMemoryAllocation: return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorNoKernelImageForDevice: return CUBLAS_STATUS_ARCH_MISMATCH;
    case cudaErrorNotSupported: return CUBLAS_STATUS_NOT_SUPPORTED;
    default: return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

// Rows of the factor are contiguous where it is transposed to BLAS, and may be taken to be where
// the factor is symmetric itself.
FactorOrder order_of(const NsProduct& p) {
  return p.transpose_b && !p.transpose_a ? FactorOrder::Columns : FactorOrder::Rows;
}

class MirroredTiles final : public SymmetricProduct {
 public:
  MirroredTiles(const SymmetricRequest& request)
      : product_(request.whole), shape_(request.shape), launch_{} {
    launch_.order = order_of(product_);
    launch_.deal = request.by == SymmetricBy::TilesInPairs ? TileDeal::Pairs : TileDeal::Alone;
  }

  cublasStatus_t prepare() {
    const NsProduct& p = product_;
    if (shape_.type != ElementType::BF16 || !is_mirrored_size(p.m, p.k, shape_.batch)) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const cudaError_t error =
        Status()
            .then([&] { return multiprocessor_count(&launch_.multiprocessors); })
            .then([&] { return prepare_mirrored(launch_); })
            .get();
    return as_blas_status(error);
  }

  cudaError_t bind(const NewtonSchulzBuffers& buffers) override {
    NewtonSchulzBuffers swapped = buffers;
    std::swap(swapped.iterate, swapped.next);
    Status status;
    factors_.clear();
    for (const NewtonSchulzBuffers& each : {buffers, swapped}) {
      const void* const memory = buffer_of(each, product_.a);
      if (factor_at(memory) != nullptr) continue;
      Factor& factor = factors_.emplace_back(Factor{memory, {}});
      status.then([&] {
        return map_factor({memory, launch_.order, product_.m, product_.k, shape_.batch},
                          &factor.map);
      });
    }
    return status.get();
  }

  cublasStatus_t queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                       cudaStream_t stream) const override {
    const Factor* const factor = factor_at(buffer_of(buffers, product_.a));
    if (factor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;  // not those that were bound
    const MirroredProduct product = {factor->map,
                                     buffer_of(buffers, product_.c),
                                     buffer_of(buffers, product_.d),
                                     product_.m,
                                     product_.k,
                                     shape_.batch,
                                     scaling.alpha,
                                     scaling.beta};
    return as_blas_status(mirrored_product(product, launch_, stream));
  }

 private:
  struct Factor {
    const void* memory;
    CUtensorMap map;
  };
  const Factor* factor_at(const void* memory) const {
    for (const Factor& factor : factors_) {
      if (factor.memory == memory) return &factor;
    }
    return nullptr;
  }

  NsProduct product_;
  NewtonSchulzShape shape_;
  MirroredLaunch launch_;
  std::vector<Factor> factors_;
};

}  // namespace

cublasStatus_t make_symmetric_product(cublasLtHandle_t handle, const SymmetricRequest& request,
                                      std::unique_ptr<SymmetricProduct>& product) {
  const auto& [shape, whole, block, by] = request;
  if (by != SymmetricBy::CublasLt) {
    auto made = std::make_unique<MirroredTiles>(request);
    const cublasStatus_t status = made->prepare();
    product = std::move(made);
    return status;
  }
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
