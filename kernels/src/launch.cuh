#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace kernels {

struct LaunchShape {
  dim3 blocks, threads;
  cudaStream_t stream;
  size_t shared_bytes = 0;  // beside what the kernel declares
};

// Queues a kernel. What comes back is this launch's own error: one that somebody left behind is not
// reported, and none is left for others to find.
template <class... Parameters, class... Arguments>
cudaError_t launch(const LaunchShape& shape, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Blocks of a kernel that goes through so many chunks, a block at least one.
inline unsigned blocks_for(uint32_t chunk_count, int block_count) {
  const auto most = static_cast<unsigned>(block_count);
  return chunk_count < most ? chunk_count : most;
}

// The first error of a row of launches.
template <class... Launches>
cudaError_t launch_in_order(Launches&&... launches) {
  cudaError_t error = cudaSuccess;
  (void)(((error = launches()) == cudaSuccess) && ...);
  return error;
}

}  // namespace kernels
