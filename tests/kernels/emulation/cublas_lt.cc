// cuBLASLt's products on the CPU, one element after the other.
#include <cublasLt.h>

#include <kernels/element.h>

#include "kernels/update_twin.h"

namespace {

int product_count = 0;

kernels::ElementType element_type(const Layout& layout) {
  switch (layout.type) {
    case CUDA_R_16BF: return kernels::ElementType::BF16;
    case CUDA_R_16F: return kernels::ElementType::F16;
    default: return kernels::ElementType::F32;
  }
}

// One operand, as op() turns it.
struct Operand {
  const void* memory;
  Layout layout;
  bool is_transposed;

  uint64_t rows() const { return is_transposed ? layout.columns : layout.rows; }
  uint64_t columns() const { return is_transposed ? layout.rows : layout.columns; }
  int64_t place(int32_t matrix, uint64_t row, uint64_t column) const {
    if (is_transposed) std::swap(row, column);
    return matrix * layout.stride + static_cast<int64_t>(row) +
           static_cast<int64_t>(column) * layout.leading;
  }
  float at(int32_t matrix, uint64_t row, uint64_t column) const {
    const kernels::ElementType type = element_type(layout);
    return decode(type, kernels::stored_bits(memory, place(matrix, row, column), type));
  }
  bool makes_sense() const {
    return memory != nullptr && layout.leading >= static_cast<int64_t>(layout.rows);
  }
};

template <class Value>
bool take(Value& to, const void* value, size_t bytes) {
  if (bytes != sizeof(Value)) return false;
  std::memcpy(&to, value, bytes);
  return true;
}

cublasStatus_t status_of(bool is_good) {
  return is_good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

int emulation::products_done() { return product_count; }

cublasStatus_t cublasLtMatrixLayoutInit(Layout* layout, cudaDataType_t type, uint64_t rows,
                                        uint64_t columns, int64_t leading) {
  *layout = {type, rows, columns, leading, 0, 1};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(Layout* layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return status_of(attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
                       ? take(layout->batch, value, bytes)
                       : take(layout->stride, value, bytes));
}

cublasStatus_t cublasLtMatmulDescInit(Operation* operation, cublasComputeType_t,
                                      cudaDataType_t scale) {
  *operation = {};
  return status_of(scale == CUDA_R_32F);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(Operation* operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return status_of(
      take(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? operation->a : operation->b, value, bytes));
}

cublasStatus_t cublasLtMatmulPreferenceInit(Preference* preference) {
  *preference = {};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(Preference* preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (attribute < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) return CUBLAS_STATUS_SUCCESS;
  const size_t operand = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  return status_of(take(preference->alignments[operand], value, bytes));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, Operation*, Layout*, Layout*,
                                              Layout*, Layout*, Preference* preference, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  results->algo.alignments = preference->alignments;
  results->state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, void*,
                                                    size_t, size_t*) {
  return CUBLAS_STATUS_NOT_SUPPORTED;  // the caller takes the usual tile
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, Operation* operation, const void* alpha,
                              const void* a, Layout* a_layout, const void* b, Layout* b_layout,
                              const void* beta, const void* c, Layout* c_layout, void* d,
                              Layout* d_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t, cudaStream_t) {
  const Operand left = {a, *a_layout, operation->a == CUBLAS_OP_T};
  const Operand right = {b, *b_layout, operation->b == CUBLAS_OP_T};
  const Operand addend = {c, *c_layout, false}, result = {d, *d_layout, false};
  const Operand* const operands[] = {&left, &right, &addend, &result};
  for (size_t i = 0; i < 4; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(operands[i]->memory);
    if (!operands[i]->makes_sense() || address % algorithm->alignments[i] != 0 ||
        operands[i]->layout.batch != result.layout.batch) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (left.rows() != result.rows() || right.columns() != result.columns() ||
      left.columns() != right.rows() || addend.rows() != result.rows() ||
      addend.columns() != result.columns() || workspace == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const kernels::ElementType type = element_type(result.layout);
  for (int32_t matrix = 0; matrix < result.layout.batch; ++matrix) {
    for (uint64_t column = 0; column < result.columns(); ++column) {
      for (uint64_t row = 0; row < result.rows(); ++row) {
        float sum = 0;
        for (uint64_t k = 0; k < left.columns(); ++k) {
          sum += left.at(matrix, row, k) * right.at(matrix, k, column);
        }
        const float added = keep == 0 ? 0 : keep * addend.at(matrix, row, column);
        kernels::store_bits(d, result.place(matrix, row, column), type,
                            encode(type, by * sum + added));
      }
    }
  }
  ++product_count;
  return CUBLAS_STATUS_SUCCESS;
}
