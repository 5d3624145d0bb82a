#pragma once

// In the place of CUDA's header where the kernels' own sources are compiled as C++: what they use
// of it. Device memory is the program's; a stream is nothing, since every launch runs at once.

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "kernels/emulation/device_words.h"

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

constexpr unsigned kThreadsMost = 1024, kRowsMost = 65535;  // of a block; of a grid in y and z

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 blocks = config->gridDim, threads = config->blockDim;
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count < 1 || count > kThreadsMost || blocks.x < 1 || blocks.y < 1 || blocks.z < 1 ||
      blocks.y > kRowsMost || blocks.z > kRowsMost) {
    return cudaErrorInvalidValue;
  }
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
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}
