#pragma once

// In the place of CUDA's header where the kernels' own sources are compiled as C++: what they use
// of it. Device memory is the program's; a stream is nothing, since every launch runs at once.

#include <cstdint>
#include <map>
#include <tuple>
#include <type_traits>

#include <cuda.h>

#include "kernels/emulation/device_words.h"
#include "kernels/emulation/sm90_model.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};
using cudaStream_t = struct CUstream_st*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

constexpr size_t kSharedBytes = 48 << 10, kSharedBytesMost = 227 << 10;
constexpr unsigned kThreadsMost = 1024, kRowsMost = 65535;  // of a block; of a grid in y and z

namespace emulation {

// By kernel: what cudaFuncSetAttribute() was told.
inline std::map<const void*, size_t> shared_bytes_of;

}  // namespace emulation

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 blocks = config->gridDim, threads = config->blockDim;
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count < 1 || count > kThreadsMost || blocks.x < 1 || blocks.y < 1 || blocks.z < 1 ||
      blocks.y > kRowsMost || blocks.z > kRowsMost) {
    return cudaErrorInvalidValue;
  }
  // More than this must have been asked for; none has that much.
  const auto asked = emulation::shared_bytes_of.find(reinterpret_cast<const void*>(kernel));
  const size_t most = asked == emulation::shared_bytes_of.end() ? kSharedBytes : asked->second;
  if (config->dynamicSmemBytes > most) return cudaErrorInvalidValue;
  emulation::set_shared_bytes(config->dynamicSmemBytes);
  const std::tuple<std::decay_t<Parameters>...> values(arguments...);
  emulation::run_grid({blocks.x, blocks.y, blocks.z}, {threads.x, threads.y, threads.z},
                      [&] { std::apply(kernel, values); });
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// A device of two multiprocessors.
struct cudaFuncAttributes {};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const auto&) { return cudaSuccess; }
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kSharedBytesMost) return cudaErrorInvalidValue;
  emulation::shared_bytes_of[reinterpret_cast<const void*>(kernel)] = static_cast<size_t>(bytes);
  return cudaSuccess;
}
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
};
constexpr unsigned long long cudaEnableDefault = 0;
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}
