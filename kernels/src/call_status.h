#pragma once

#include <utility>

#include <cuda_runtime_api.h>

// What calls of CUDA's runtime say.
namespace kernels {

// A failure that is reported does not stay behind as the last error of CUDA's runtime, where torch
// or the trainer would take it for one of theirs.
inline cudaError_t reported(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

// The first failure of a row of calls; those after it are not made.
class Status {
 public:
  template <class Call>
  Status& then(Call&& call) {
    if (error_ == cudaSuccess) error_ = reported(std::forward<Call>(call)());
    return *this;
  }
  cudaError_t get() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
};

}  // namespace kernels
