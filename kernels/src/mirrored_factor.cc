// The factor of a symmetric product as the tensor memory accelerator is told of it.
#include <kernels/mirrored_product.h>

#include "call_status.h"

namespace kernels {
namespace {

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
