#include <utility>
#include <vector>

#include <kernels/mirrored_product.h>
#include <kernels/multi_tensor_update.h>
#include <kernels/symmetric.h>

#include "call_status.h"
#include "products.h"

namespace kernels {

namespace {

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

cudaDataType_t data_type(ElementType type) {
  switch (type) {
    case ElementType::BF16: return CUDA_R_16BF;
    case ElementType::F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

// `highest` is pedantic: environment variables that let cuBLAS compute fp32 by TF32 or by several
// bf16 products (NVIDIA_TF32_OVERRIDE, CUBLAS_EMULATE_SINGLE_PRECISION) do not reach it.
cublasComputeType_t compute_type(const NewtonSchulzShape& shape) {
  if (shape.type != ElementType::F32) return CUBLAS_COMPUTE_32F;
  return shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
}

struct LayoutSize {
  int64_t rows, columns, leading, stride;
};

cublasStatus_t make_layout(cublasLtMatrixLayoutOpaque_t& layout, const NewtonSchulzShape& shape,
                           const LayoutSize& size) {
  const auto batch = static_cast<int32_t>(shape.batch);
  return BlasStatus()
      .then([&] {
        return cublasLtMatrixLayoutInit(&layout, data_type(shape.type),
                                        static_cast<uint64_t>(size.rows),
                                        static_cast<uint64_t>(size.columns), size.leading);
      })
      .then([&] {
        return cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof batch);
      })
      .then([&] {
        return cublasLtMatrixLayoutSetAttribute(
            &layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &size.stride, sizeof size.stride);
      })
      .get();
}

template <class Value>
cublasStatus_t prefer(cublasLtMatmulPreferenceOpaque_t& preference,
                      cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value);
}

// The alignment that every column and every matrix of a batch has, at most 256 bytes.
uint32_t alignment_bytes(const NewtonSchulzShape& shape, const LayoutSize& size, int64_t offset) {
  const int64_t bytes = bytes_of(shape.type);
  const int64_t stride = shape.batch > 1 ? size.stride : 0;
  const int64_t steps = size.leading * bytes | stride * bytes | offset * bytes | 256;
  return static_cast<uint32_t>(steps & -steps);
}

LayoutSize size_of_a(const NsProduct& p) {
  return {p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_leading, p.a_stride};
}
LayoutSize size_of_b(const NsProduct& p) {
  return {p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_leading, p.b_stride};
}
LayoutSize size_of_d(const NsProduct& p) { return {p.m, p.n, p.d_leading, p.d_stride}; }

constexpr int64_t kAlignment = 16;          // bytes, of addresses and strides
constexpr unsigned kDriverVersion = 12000;  // that first had the function
constexpr cuuint32_t kBox = 64;             // elements of bf16: 128 bytes, the swizzle's width

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's library is not linked: it is the machine's, and not there without a GPU.
cudaError_t find_encode(Encode* encode) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = reported(cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kDriverVersion, cudaEnableDefault, &found));
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess || function == nullptr) return cudaErrorNotSupported;
  *encode = reinterpret_cast<Encode>(function);
  return cudaSuccess;
}

}  // namespace

cublasStatus_t make_symmetric_product(cublasLtHandle_t handle, const SymmetricRequest& request,
                                      std::unique_ptr<SymmetricProduct>& product) {
  const auto& [shape, whole, block, by] = request;
  const auto prepared = [&product](auto made, const auto&... about) {
    const cublasStatus_t status = made->prepare(about...);
    product = std::move(made);
    return status;
  };
  if (by != SymmetricBy::CublasLt) return prepared(std::make_unique<MirroredTiles>(request));
  if (block == 0 || block >= whole.m) {
    return prepared(std::make_unique<LtMatmul>(), handle, shape, whole);
  }
  return prepared(std::make_unique<ProductInBlocks>(shape, whole, block), handle, shape);
}

cudaError_t as_cuda_error(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return cudaSuccess;
    case CUBLAS_STATUS_INVALID_VALUE: return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED: return cudaErrorNotSupported;
    case CUBLAS_STATUS_ALLOC_FAILED: return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_ARCH_MISMATCH: return cudaErrorNoKernelImageForDevice;
    case CUBLAS_STATUS_NOT_INITIALIZED: return cudaErrorInitializationError;
    default: return cudaErrorUnknown;
  }
}

cublasStatus_t LtMatmul::describe(const NewtonSchulzShape& shape) {
  const NsProduct& p = product_;
  const cublasComputeType_t compute = compute_type(shape);
  const cublasOperation_t a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  return BlasStatus()
      .then([&] { return cublasLtMatmulDescInit(&operation_, compute, CUDA_R_32F); })
      .then([&] {
        return cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &a,
                                              sizeof a);
      })
      .then([&] {
        return cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSB, &b,
                                              sizeof b);
      })
      .then([&] { return make_layout(a_, shape, size_of_a(p)); })
      .then([&] { return make_layout(b_, shape, size_of_b(p)); })
      .then([&] { return make_layout(d_, shape, size_of_d(p)); })
      .get();
}

// Sums that are split may be added in fp32 only: other schemes would round in between.
cublasStatus_t LtMatmul::choose(const NewtonSchulzShape& shape) {
  const auto schemes = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const NsProduct& p = product_;
  const uint32_t of_a = alignment_bytes(shape, size_of_a(p), p.a_offset);
  const uint32_t of_b = alignment_bytes(shape, size_of_b(p), p.b_offset);
  const uint32_t of_d = alignment_bytes(shape, size_of_d(p), p.d_offset);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  BlasStatus status;
  status.then([&] { return cublasLtMatmulPreferenceInit(&preference); })
      .then([&] {
        return prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                      kNewtonSchulzWorkspaceBytes);
      })
      .then([&] { return prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes); })
      .then([&] { return prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_a); })
      .then([&] { return prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_b); })
      .then([&] { return prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_d); })
      .then([&] { return prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_d); })
      .then([&] {
        return cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &a_, &b_, &d_, &d_, &preference,
                                              1, &result, &found);
      });
  if (status.get() == CUBLAS_STATUS_SUCCESS && found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (status.get() == CUBLAS_STATUS_SUCCESS && result.state != CUBLAS_STATUS_SUCCESS) {
    return result.state;
  }
  algorithm_ = result.algo;
  return status.get();
}

cublasStatus_t LtMatmul::prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape,
                                 const NsProduct& product) {
  handle_ = handle;
  type_ = shape.type;
  product_ = product;
  return BlasStatus()
      .then([&] { return describe(shape); })
      .then([&] { return choose(shape); })
      .get();
}

ProductTile LtMatmul::tile() const {
  uint32_t id = CUBLASLT_MATMUL_TILE_UNDEFINED;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, CUBLASLT_ALGO_CONFIG_TILE_ID, &id,
                                           sizeof id, &written) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  switch (id) {
    case CUBLASLT_MATMUL_TILE_64x64: return {64, 64};
    case CUBLASLT_MATMUL_TILE_64x128: return {64, 128};
    case CUBLASLT_MATMUL_TILE_128x64: return {128, 64};
    case CUBLASLT_MATMUL_TILE_64x256: return {64, 256};
    case CUBLASLT_MATMUL_TILE_128x128: return {128, 128};
    case CUBLASLT_MATMUL_TILE_256x64: return {256, 64};
    case CUBLASLT_MATMUL_TILE_128x256: return {128, 256};
    case CUBLASLT_MATMUL_TILE_256x128: return {256, 128};
    case CUBLASLT_MATMUL_TILE_192x128: return {192, 128};
    case CUBLASLT_MATMUL_TILE_128x192: return {128, 192};
    default: return {};
  }
}

// Of copies: cuBLASLt takes descriptors that are not const, and this may be called by many threads.
cublasStatus_t LtMatmul::queue(NsScaling scaling, const NewtonSchulzBuffers& buffers,
                               cudaStream_t stream) const {
  LtMatmul copy = *this;
  const NsProduct& p = product_;
  const auto place = [&](NsOperand operand, int64_t offset) {
    return static_cast<char*>(buffer_of(buffers, operand)) + offset * bytes_of(type_);
  };
  return cublasLtMatmul(handle_, &copy.operation_, &scaling.alpha, place(p.a, p.a_offset), &copy.a_,
                        place(p.b, p.b_offset), &copy.b_, &scaling.beta, place(p.c, p.d_offset),
                        &copy.d_, place(p.d, p.d_offset), &copy.d_, &copy.algorithm_,
                        buffers.workspace, kNewtonSchulzWorkspaceBytes, stream);
}

cudaError_t map_factor(const MirroredFactor& factor, CUtensorMap* map) {
  const auto address = reinterpret_cast<uintptr_t>(factor.memory);
  if (!is_mirrored_size(factor.edge, factor.depth, factor.batch) || address == 0 ||
      address % kAlignment != 0) {
    return cudaErrorInvalidValue;
  }
  Encode encode = nullptr;
  const cudaError_t error = find_encode(&encode);
  if (error != cudaSuccess) return error;
  const bool has_rows = factor.order == FactorOrder::Rows;
  const auto inner = static_cast<cuuint64_t>(has_rows ? factor.depth : factor.edge);
  const auto outer = static_cast<cuuint64_t>(has_rows ? factor.edge : factor.depth);
  const cuuint64_t lengths[] = {inner, outer, static_cast<cuuint64_t>(factor.batch)};
  const cuuint64_t strides[] = {inner * 2, inner * outer * 2};  // bytes, of all but the first
  const cuuint32_t box[] = {kBox, kBox, 1}, steps[] = {1, 1, 1};
  const CUresult made =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(factor.memory), lengths,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace kernels
