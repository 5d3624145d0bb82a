// A cuBLASLt that records.
#include <cstring>
#include <utility>

#include "inside_fake.h"
#include "kernels/muon_twin.h"

using namespace fake_cuda;

struct cublasLtContext {};

namespace {

size_t cublas_version = CUBLAS_VERSION;
uint32_t tile_id = CUBLASLT_MATMUL_TILE_128x256;
std::vector<Product> asked;

cublasStatus_t blas_status(cudaError_t fault) {
  if (fault == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
  return fault == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED
                                            : CUBLAS_STATUS_EXECUTION_FAILED;
}

template <class Body>
cublasStatus_t blas_call(const char* name, Body&& body) {
  const cublasStatus_t fault = blas_status(begin_call(name));
  return fault != CUBLAS_STATUS_SUCCESS ? fault : body();
}

cublasStatus_t set(uint64_t* description, int attribute, const void* value, size_t size) {
  if (size > sizeof *description) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(description + attribute, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cleared(void* description, size_t size, size_t wanted) {
  if (size != wanted) return CUBLAS_STATUS_INVALID_VALUE;
  std::memset(description, 0, size);
  return CUBLAS_STATUS_SUCCESS;
}

kernels::ElementType element_type(uint64_t type) {
  switch (type) {
    case CUDA_R_16BF: return kernels::ElementType::BF16;
    case CUDA_R_16F: return kernels::ElementType::F16;
    default: return kernels::ElementType::F32;
  }
}

// A product by its descriptions, in the order of the twins.
struct ProductOf {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a_layout, b_layout, d_layout;
  float alpha, beta;

  static int64_t leading(const cublasLtMatrixLayoutOpaque_t& layout) {
    return static_cast<int64_t>(layout.data[3]);
  }
  static int64_t stride(const cublasLtMatrixLayoutOpaque_t& layout) {
    return static_cast<int64_t>(layout.data[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET]);
  }

  void multiply(const void* a, const void* b, const void* c, void* d) const {
    using kernels::NsOperand;
    const bool transposes_a = operation.data[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T;
    const kernels::NsProduct product = {
        .a = NsOperand::Iterate,
        .b = NsOperand::Gram,
        .c = NsOperand::Polynomial,
        .d = NsOperand::Next,
        .transpose_a = transposes_a,
        .transpose_b = operation.data[CUBLASLT_MATMUL_DESC_TRANSB] == CUBLAS_OP_T,
        .m = static_cast<int64_t>(d_layout.data[1]),
        .n = static_cast<int64_t>(d_layout.data[2]),
        .k = static_cast<int64_t>(a_layout.data[transposes_a ? 1 : 2]),
        .a_leading = leading(a_layout),
        .b_leading = leading(b_layout),
        .d_leading = leading(d_layout),
        .a_stride = stride(a_layout),
        .b_stride = stride(b_layout),
        .d_stride = stride(d_layout)};
    const kernels::NewtonSchulzBuffers buffers = {const_cast<void*>(a), d, const_cast<void*>(b),
                                                  const_cast<void*>(c), nullptr};
    const kernels::ElementType type = element_type(d_layout.data[0]);
    const auto batch = static_cast<int64_t>(d_layout.data[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT]);
    kernels::ProductTwin{type, alpha, beta}.multiply(product, buffers, batch);
  }
};

}  // namespace

namespace fake_cuda {

const std::vector<Product>& products() { return asked; }
void forget_products() { asked.clear(); }
void set_cublas_version(size_t version) { cublas_version = version; }
void set_tile(int id) { tile_id = static_cast<uint32_t>(id); }

}  // namespace fake_cuda

extern "C" {

size_t cublasLtGetVersion() { return cublas_version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return blas_call("cublasLtCreate", [&] {
    *handle = make<cublasLtContext>();
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  note_call("cublasLtDestroy");
  return destroy(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Descriptions. Of a layout: type, rows, columns, leading; then attributes by their numbers. Of an
// operation: compute type, then the same.
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading) {
  return blas_call("cublasLtMatrixLayoutInit", [&] {
    const cublasStatus_t status = cleared(layout, size, sizeof *layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    layout->data[0] = static_cast<uint64_t>(type);
    layout->data[1] = rows;
    layout->data[2] = columns;
    layout->data[3] = static_cast<uint64_t>(leading);
    return status;
  });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
  return blas_call("cublasLtMatrixLayoutSetAttribute",
                   [&] { return set(layout->data, attribute, value, size); });
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t size,
                                               cublasComputeType_t compute,
                                               cudaDataType_t /*scale*/) {
  return blas_call("cublasLtMatmulDescInit", [&] {
    const cublasStatus_t status = cleared(operation, size, sizeof *operation);
    if (status == CUBLAS_STATUS_SUCCESS) operation->data[0] = static_cast<uint64_t>(compute);
    return status;
  });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  return blas_call("cublasLtMatmulDescSetAttribute",
                   [&] { return set(operation->data, attribute, value, size); });
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  return blas_call("cublasLtMatmulPreferenceInit",
                   [&] { return cleared(preference, size, sizeof *preference); });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t /*preference*/, cublasLtMatmulPreferenceAttributes_t /*attribute*/,
    const void* /*value*/, size_t /*size*/) {
  return blas_call("cublasLtMatmulPreferenceSetAttribute", [] { return CUBLAS_STATUS_SUCCESS; });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t results[], int* found) {
  return blas_call("cublasLtMatmulAlgoGetHeuristic", [&] {
    if (!is_alive(handle) || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    asked.push_back({static_cast<cublasComputeType_t>(operation->data[0]),
                     static_cast<cudaDataType>(a->data[0])});
    results[0] = {};
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* /*algorithm*/,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  note_call("cublasLtMatmulAlgoConfigGetAttribute");
  const uint32_t tile = tile_id;
  if (attribute != CUBLASLT_ALGO_CONFIG_TILE_ID || size != sizeof tile) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(value, &tile, size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                              cudaStream_t stream) {
  return blas_call("cublasLtMatmul", [&] {
    if (!is_alive(handle) || algorithm == nullptr || workspace == nullptr || !can_take(stream)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const ProductOf product = {*operation,
                               *a_layout,
                               *b_layout,
                               *d_layout,
                               *static_cast<const float*>(alpha),
                               *static_cast<const float*>(beta)};
    give({.name = "cublasLtMatmul", .stream = stream, .is_kernel = true, .run = [=] {
            product.multiply(a, b, c, d);
          }});
    return CUBLAS_STATUS_SUCCESS;
  });
}

}  // extern "C"
