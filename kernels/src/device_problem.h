#pragma once

#include <cstddef>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace kernels {

// What decides whether a GPU can be used.
struct DeviceFacts {
  cudaError_t count_error = cudaSuccess;  // of asking for the number of devices
  int devices = 0;
  int driver_version = 0;                 // 1000 * major + 10 * minor; 0: there is no driver
  int runtime_version = 0;                // that we were built with
  cudaError_t image_error = cudaSuccess;  // of asking for a kernel on the current device
  int major = 0, minor = 0;               // its architecture
  // Of the cuBLASLt that is loaded. A process has one of each soname, whoever loaded it first: our
  // toolkit's or torch's wheel's. Minor versions of one major are compatible.
  size_t blas_version = CUBLAS_VERSION;
};
DeviceFacts device_facts();

// One line that says why not, or nothing.
std::string problem_of(const DeviceFacts& facts);

}  // namespace kernels
