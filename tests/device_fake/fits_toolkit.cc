// Compiled against cuda/, and against the toolkit's own headers where there is one: names that
// have the same values, and functions that take the same arguments, in both.
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#define SAME(name, value) static_assert(static_cast<long>(name) == (value), #name)
SAME(cudaErrorInvalidValue, 1);
SAME(cudaErrorMemoryAllocation, 2);
SAME(cudaErrorInitializationError, 3);
SAME(cudaErrorInsufficientDriver, 35);
SAME(cudaErrorInvalidDeviceFunction, 98);
SAME(cudaErrorNoDevice, 100);
SAME(cudaErrorNoKernelImageForDevice, 209);
SAME(cudaErrorInvalidResourceHandle, 400);
SAME(cudaErrorIllegalAddress, 700);
SAME(cudaErrorLaunchFailure, 719);
SAME(cudaErrorNotSupported, 801);
SAME(cudaErrorSystemNotReady, 802);
SAME(cudaErrorStreamCaptureUnsupported, 900);
SAME(cudaErrorStreamCaptureInvalidated, 901);
SAME(cudaErrorStreamCaptureUnjoined, 904);
SAME(cudaErrorStreamCaptureIsolation, 905);
SAME(cudaErrorUnknown, 999);
SAME(cudaMemcpyHostToDevice, 1);
SAME(cudaMemcpyDeviceToHost, 2);
SAME(cudaDevAttrMultiProcessorCount, 16);
SAME(cudaDevAttrClockRate, 13);
SAME(cudaDevAttrMemoryClockRate, 36);
SAME(cudaDevAttrL2CacheSize, 38);
SAME(cudaDevAttrGlobalMemoryBusWidth, 37);
SAME(cudaDevAttrComputeCapabilityMajor, 75);
SAME(cudaDevAttrComputeCapabilityMinor, 76);
SAME(cudaStreamCaptureModeThreadLocal, 1);
SAME(cudaStreamCaptureStatusActive, 1);
SAME(cudaStreamNonBlocking, 1);
SAME(cudaEventBlockingSync, 1);
SAME(cudaEventDisableTiming, 2);
SAME(cudaHostRegisterDefault, 0);
SAME(cudaFuncAttributeMaxDynamicSharedMemorySize, 8);
SAME(cudaDriverEntryPointSuccess, 0);
SAME(cudaDriverEntryPointSymbolNotFound, 1);
SAME(cudaEnableDefault, 0);
SAME(CUDA_SUCCESS, 0);
SAME(CUDA_ERROR_INVALID_VALUE, 1);
SAME(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 9);
SAME(CU_TENSOR_MAP_INTERLEAVE_NONE, 0);
SAME(CU_TENSOR_MAP_SWIZZLE_NONE, 0);
SAME(CU_TENSOR_MAP_SWIZZLE_128B, 3);
SAME(CU_TENSOR_MAP_L2_PROMOTION_L2_256B, 3);
SAME(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, 0);
SAME(sizeof(CUtensorMap), 128);
SAME(alignof(CUtensorMap), 128);
SAME(CUDA_R_32F, 0);
SAME(CUDA_R_16F, 2);
SAME(CUDA_R_16BF, 14);
SAME(CUBLAS_STATUS_NOT_INITIALIZED, 1);
SAME(CUBLAS_STATUS_ALLOC_FAILED, 3);
SAME(CUBLAS_STATUS_INVALID_VALUE, 7);
SAME(CUBLAS_STATUS_ARCH_MISMATCH, 8);
SAME(CUBLAS_STATUS_EXECUTION_FAILED, 13);
SAME(CUBLAS_STATUS_NOT_SUPPORTED, 15);
SAME(CUBLAS_OP_T, 1);
SAME(CUBLAS_COMPUTE_32F, 68);
SAME(CUBLAS_COMPUTE_32F_PEDANTIC, 69);
SAME(CUBLAS_COMPUTE_32F_FAST_TF32, 77);
SAME(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5);
SAME(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6);
SAME(CUBLASLT_MATMUL_DESC_TRANSA, 3);
SAME(CUBLASLT_MATMUL_DESC_TRANSB, 4);
SAME(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2);
SAME(CUBLASLT_MATMUL_TILE_64x64, 15);
SAME(CUBLASLT_MATMUL_TILE_64x128, 17);
SAME(CUBLASLT_MATMUL_TILE_128x64, 18);
SAME(CUBLASLT_MATMUL_TILE_64x256, 19);
SAME(CUBLASLT_MATMUL_TILE_128x128, 20);
SAME(CUBLASLT_MATMUL_TILE_256x64, 21);
SAME(CUBLASLT_MATMUL_TILE_128x256, 23);
SAME(CUBLASLT_MATMUL_TILE_256x128, 24);
SAME(CUBLASLT_MATMUL_TILE_192x128, 31);
SAME(CUBLASLT_MATMUL_TILE_128x192, 32);
SAME(CUBLASLT_ALGO_CONFIG_TILE_ID, 1);
SAME(sizeof(cublasLtMatrixLayoutOpaque_t), 64);
SAME(sizeof(cublasLtMatmulDescOpaque_t), 256);
SAME(sizeof(cublasLtMatmulAlgo_t), 64);
#undef SAME

// A second declaration with other arguments or another result would not compile.
extern "C" {
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found);
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* memory, const cuuint64_t* lengths, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
cudaError_t cudaMemsetAsync(void* to, int value, size_t count, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream);
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale);
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream);
}
