#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace kernels {

// One fp32 tensor with its AdamW state: device pointers to `count` contiguous elements each.
struct AdamTensor {
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  int64_t count;
};

struct AdamConfig {
  double lr;
  double beta1, beta2;
  double eps;
  double weight_decay;  // decoupled: a parameter shrinks by lr * weight_decay before its update
  int64_t step;         // of this update, counted from 1
};

// One AdamW step of every tensor, in place, in the order of operations of torch.optim.AdamW:
//   p = p * (1 - lr * weight_decay)
//   m = m + (1 - beta1) * (g - m)
//   v = v * beta2 + (1 - beta2) * g * g
//   p = p + (-lr / (1 - beta1^step)) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// Scalars are computed in double and rounded to fp32 once; every operation on elements rounds to
// fp32 and none is fused, so that a CPU that does the same gets the same bits.
//
// `tensors` is host memory, read before the call returns; the work is queued on `stream`. Nothing
// is allocated, nothing waits. Returns cudaErrorInvalidValue for a negative count or a step below
// 1, else the first error of a launch. Safe to call from many threads.
cudaError_t multi_tensor_adam(const AdamTensor* tensors, int tensor_count,
                              const AdamConfig& config, cudaStream_t stream);

}  // namespace kernels
