#include <kernels/newton_schulz.h>

#include <utility>

namespace kernels {
namespace {

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

// The first failure of a row of calls.
class Status {
 public:
  template <class Call>
  Status& then(Call&& call) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = std::forward<Call>(call)();
    return *this;
  }
  cublasStatus_t get() const { return status_; }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

cudaDataType_t data_type(ElementType type) {
  return type == ElementType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
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
  return Status()
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

void* buffer_of(const NewtonSchulzBuffers& buffers, NsOperand operand) {
  switch (operand) {
    case NsOperand::Iterate: return buffers.iterate;
    case NsOperand::Gram: return buffers.gram;
    case NsOperand::Polynomial: return buffers.polynomial;
    case NsOperand::Next: return buffers.next;
  }
  return nullptr;
}

LayoutSize size_of_a(const NsProduct& p) {
  return {p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_leading, p.a_stride};
}
LayoutSize size_of_b(const NsProduct& p) {
  return {p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_leading, p.b_stride};
}
LayoutSize size_of_d(const NsProduct& p) { return {p.m, p.n, p.d_leading, p.d_stride}; }

bool can_run(const NewtonSchulzShape& shape) {
  return shape.rows > 0 && shape.columns > 0 && shape.batch > 0 && shape.batch <= INT32_MAX &&
         shape.symmetric_block >= 0 && shape.symmetric_block % kMirrorTile == 0 &&
         (shape.type == ElementType::BF16 || shape.type == ElementType::F32);
}

}  // namespace

cublasStatus_t NewtonSchulz::describe(const NsProduct& product, Matmul& matmul) const {
  matmul.product = product;
  const cublasComputeType_t compute = compute_type(shape_);
  const cublasOperation_t a = product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b = product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  return Status()
      .then([&] { return cublasLtMatmulDescInit(&matmul.operation, compute, CUDA_R_32F); })
      .then([&] {
        return cublasLtMatmulDescSetAttribute(&matmul.operation, CUBLASLT_MATMUL_DESC_TRANSA, &a,
                                              sizeof a);
      })
      .then([&] {
        return cublasLtMatmulDescSetAttribute(&matmul.operation, CUBLASLT_MATMUL_DESC_TRANSB, &b,
                                              sizeof b);
      })
      .then([&] { return make_layout(matmul.a, shape_, size_of_a(product)); })
      .then([&] { return make_layout(matmul.b, shape_, size_of_b(product)); })
      .then([&] { return make_layout(matmul.d, shape_, size_of_d(product)); })
      .get();
}

// Sums that are split may be added in fp32 only: other schemes would round in between.
cublasStatus_t NewtonSchulz::choose(Matmul& matmul) const {
  const auto schemes = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const NsProduct& p = matmul.product;
  const uint32_t of_a = alignment_bytes(shape_, size_of_a(p), p.a_offset);
  const uint32_t of_b = alignment_bytes(shape_, size_of_b(p), p.b_offset);
  const uint32_t of_d = alignment_bytes(shape_, size_of_d(p), p.d_offset);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  Status status;
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
        return cublasLtMatmulAlgoGetHeuristic(handle_, &matmul.operation, &matmul.a, &matmul.b,
                                              &matmul.d, &matmul.d, &preference, 1, &result,
                                              &found);
      });
  if (status.get() == CUBLAS_STATUS_SUCCESS && found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (status.get() == CUBLAS_STATUS_SUCCESS && result.state != CUBLAS_STATUS_SUCCESS) {
    return result.state;
  }
  matmul.algorithm = result.algo;
  return status.get();
}

cublasStatus_t NewtonSchulz::multiply(Matmul matmul, NsScaling scaling,
                                      const NewtonSchulzBuffers& buffers,
                                      cudaStream_t stream) const {
  const NsProduct& p = matmul.product;
  const auto place = [&](NsOperand operand, int64_t offset) {
    return static_cast<char*>(buffer_of(buffers, operand)) + offset * bytes_of(shape_.type);
  };
  return cublasLtMatmul(handle_, &matmul.operation, &scaling.alpha, place(p.a, p.a_offset),
                        &matmul.a, place(p.b, p.b_offset), &matmul.b, &scaling.beta,
                        place(p.c, p.d_offset), &matmul.d, place(p.d, p.d_offset), &matmul.d,
                        &matmul.algorithm, buffers.workspace, kNewtonSchulzWorkspaceBytes, stream);
}

cublasStatus_t NewtonSchulz::multiply_symmetric(const std::vector<Matmul>& blocks,
                                                NsScaling scaling,
                                                const NewtonSchulzBuffers& buffers,
                                                cudaStream_t stream) const {
  Status status;
  for (const Matmul& block : blocks) {
    status.then([&] { return multiply(block, scaling, buffers, stream); });
  }
  if (status.get() != CUBLAS_STATUS_SUCCESS || blocks.size() == 1) return status.get();
  const NsProduct& product = blocks.front().product;
  const MirrorRequest request = {buffer_of(buffers, product.d), shape_.type, product.d_leading,
                                 shape_.batch, shape_.symmetric_block};
  return mirror_blocks(request, stream) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                       : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t NewtonSchulz::make_matmul(const NsProduct& product, Matmul& matmul) const {
  return Status()
      .then([&] { return describe(product, matmul); })
      .then([&] { return choose(matmul); })
      .get();
}

cudaError_t NewtonSchulz::prepare(cublasLtHandle_t handle, const NewtonSchulzShape& shape) {
  if (!can_run(shape)) return cudaErrorInvalidValue;
  handle_ = handle;
  shape_ = shape;
  const NsProducts products = newton_schulz_products(shape);
  gram_.resize(products.gram.size());
  polynomial_.resize(products.polynomial.size());
  Status status;
  for (size_t i = 0; i < gram_.size(); ++i) {
    status.then([&] { return make_matmul(products.gram[i], gram_[i]); }).then([&] {
      return make_matmul(products.polynomial[i], polynomial_[i]);
    });
  }
  return as_cuda_error(status.then([&] { return make_matmul(products.update, update_); }).get());
}

cudaError_t NewtonSchulz::run(const NewtonSchulzBuffers& buffers,
                              const NewtonSchulzCoefficients* coefficients, int steps,
                              cudaStream_t stream) const {
  if (handle_ == nullptr || steps < 0) return cudaErrorInvalidValue;
  NewtonSchulzBuffers current = buffers;
  Status status;
  for (int i = 0; i < steps; ++i) {
    const NsStep step = ns_step_of(coefficients[i]);
    status.then([&] { return multiply_symmetric(gram_, {1, 0}, current, stream); });
    if (step.has_polynomial) {
      status.then(
          [&] { return multiply_symmetric(polynomial_, step.polynomial, current, stream); });
    }
    status.then(
        [&] { return multiply(update_, step.update, buffers_of_update(current, step), stream); });
    std::swap(current.iterate, current.next);
  }
  return as_cuda_error(status.get());
}

}  // namespace kernels
