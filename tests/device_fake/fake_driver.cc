// What a kernel with more shared memory than usual and tiles of tensors asks of the runtime and the
// driver, remembered.
#include <cstring>
#include <map>

#include <cuda.h>

#include "inside_fake.h"

using namespace fake_cuda;

namespace {

constexpr size_t kSharedBytes = 48 << 10, kSharedBytesMost = 227 << 10;

std::map<const void*, size_t> shared_bytes_of;  // kernels that may have more than usual

template <class Body>
cudaError_t remembered(const char* name, Body&& body) {
  const cudaError_t fault = begin_call(name);
  const cudaError_t error = fault != cudaSuccess ? fault : body();
  if (error != cudaSuccess) leave_error(error);
  return error;
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* memory,
                      const cuuint64_t* lengths, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
  if (begin_call("cuTensorMapEncodeTiled") != cudaSuccess) return CUDA_ERROR_INVALID_VALUE;
  return cuTensorMapEncodeTiled(map, type, rank, memory, lengths, strides, box, steps, interleave,
                                swizzle, promotion, fill);
}

}  // namespace

size_t fake_cuda::shared_bytes_most(const void* kernel) {
  const auto asked = shared_bytes_of.find(kernel);
  return asked == shared_bytes_of.end() ? kSharedBytes : asked->second;
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return remembered("cudaFuncSetAttribute", [&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > kSharedBytesMost) {
      return cudaErrorInvalidValue;
    }
    shared_bytes_of[function] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  return remembered("cudaGetDriverEntryPointByVersion", [&] {
    const bool is_known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0 && version >= 12000;
    *function = is_known ? reinterpret_cast<void*>(&encode_tiled) : nullptr;
    *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"
