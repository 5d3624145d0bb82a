#pragma once

#include <cuda_runtime.h>

namespace kernels {

struct LaunchShape {
  dim3 blocks, threads;
  cudaStream_t stream;
};

// Queues a kernel. What comes back is this launch's own error: one that somebody left behind is not
// reported, and none is left for others to find.
template <class... Parameters, class... Arguments>
cudaError_t launch(const LaunchShape& shape, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.stream = shape.stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// The first error of a row of launches.
template <class... Launches>
cudaError_t launch_in_order(Launches&&... launches) {
  cudaError_t error = cudaSuccess;
  (void)(((error = launches()) == cudaSuccess) && ...);
  return error;
}

}  // namespace kernels
