#pragma once

// In the place of cuBLASLt's header: what kernels/src/newton_schulz.cc uses of it. A product is
// summed in fp32 in order of k, as the twin does it, and checked: sizes that do not fit together,
// and operands that are not aligned as the choice of its algorithm was told, are refused.

#include <array>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cublas_lt_enums.h"

enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };

using cublasLtHandle_t = struct cublasLtContext*;

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0, stride = 0;
  int32_t batch = 1;
};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};
// In bytes, of A, B, C and D; 256 where nothing was said.
using OperandAlignments = std::array<uint32_t, 4>;
struct cublasLtMatmulPreferenceOpaque_t {
  OperandAlignments alignments = {256, 256, 256, 256};
};
struct cublasLtMatmulAlgo_t {
  OperandAlignments alignments = {};
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  cublasStatus_t state = CUBLAS_STATUS_SUCCESS;
};
using Layout = cublasLtMatrixLayoutOpaque_t;
using Operation = cublasLtMatmulDescOpaque_t;
using Preference = cublasLtMatmulPreferenceOpaque_t;

cublasStatus_t cublasLtMatrixLayoutInit(Layout* layout, cudaDataType_t type, uint64_t rows,
                                        uint64_t columns, int64_t leading);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(Layout* layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulDescInit(Operation* operation, cublasComputeType_t compute,
                                      cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescSetAttribute(Operation* operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulPreferenceInit(Preference* preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(Preference* preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, Operation* operation,
                                              Layout* a, Layout* b, Layout* c, Layout* d,
                                              Preference* preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found);
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, Operation* operation, const void* alpha,
                              const void* a, Layout* a_layout, const void* b, Layout* b_layout,
                              const void* beta, const void* c, Layout* c_layout, void* d,
                              Layout* d_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream);

namespace emulation {

// Products since the program began.
int products_done();

}  // namespace emulation
