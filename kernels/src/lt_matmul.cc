#include "lt_matmul.h"

namespace kernels {
namespace {

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

}  // namespace

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

}  // namespace kernels
