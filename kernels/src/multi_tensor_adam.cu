#include <kernels/multi_tensor_adam.h>

#include <cmath>
#include <cstdint>

namespace kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 65536;  // elements of one tensor that one block updates; a multiple of 4

// Launch arguments travel in the 4 KiB of kernel parameters: no table in device memory is needed.
constexpr int kTensorsPerLaunch = 88;

struct Scalars {
  float decay;
  float one_minus_beta1;
  float beta2, one_minus_beta2;
  float root_correction2;  // sqrt(1 - beta2^step)
  float eps;
  float minus_step_size;  // -lr / (1 - beta1^step)

  __device__ void update(float& p, float g, float& m, float& v) const {
    p = p * decay;
    m = m + one_minus_beta1 * (g - m);
    v = v * beta2 + one_minus_beta2 * g * g;
    p = p + minus_step_size * m / (sqrtf(v) / root_correction2 + eps);
  }
};

struct Batch {
  AdamTensor tensors[kTensorsPerLaunch];
  int first_chunk[kTensorsPerLaunch + 1];  // of each tensor; the last one is the grid's size
  int tensor_count;
};
static_assert(sizeof(Batch) + sizeof(Scalars) <= 4096);

// The tensor that block `chunk` works on: the last one whose first chunk is not after it.
__device__ int tensor_of(const Batch& batch, int chunk) {
  int low = 0, high = batch.tensor_count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0;
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ Batch batch, const __grid_constant__ Scalars scalars) {
  const int index = tensor_of(batch, static_cast<int>(blockIdx.x));
  const AdamTensor& tensor = batch.tensors[index];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - batch.first_chunk[index]) * kChunk;
  const int64_t end = begin + kChunk < tensor.count ? begin + kChunk : tensor.count;

  // Four elements a thread where all four pointers allow it; what is left, one by one.
  int64_t scalar_begin = begin;
  if (is_aligned(tensor.param) && is_aligned(tensor.grad) && is_aligned(tensor.exp_avg) &&
      is_aligned(tensor.exp_avg_sq)) {
    scalar_begin = begin + (end - begin) / 4 * 4;
    for (int64_t i = begin + 4 * threadIdx.x; i < scalar_begin; i += 4 * kThreads) {
      float4 p = *reinterpret_cast<const float4*>(tensor.param + i);
      const float4 g = *reinterpret_cast<const float4*>(tensor.grad + i);
      float4 m = *reinterpret_cast<const float4*>(tensor.exp_avg + i);
      float4 v = *reinterpret_cast<const float4*>(tensor.exp_avg_sq + i);
      scalars.update(p.x, g.x, m.x, v.x);
      scalars.update(p.y, g.y, m.y, v.y);
      scalars.update(p.z, g.z, m.z, v.z);
      scalars.update(p.w, g.w, m.w, v.w);
      *reinterpret_cast<float4*>(tensor.param + i) = p;
      *reinterpret_cast<float4*>(tensor.exp_avg + i) = m;
      *reinterpret_cast<float4*>(tensor.exp_avg_sq + i) = v;
    }
  }
  for (int64_t i = scalar_begin + threadIdx.x; i < end; i += kThreads) {
    scalars.update(tensor.param[i], tensor.grad[i], tensor.exp_avg[i], tensor.exp_avg_sq[i]);
  }
}

Scalars make_scalars(const AdamConfig& config) {
  const double step = static_cast<double>(config.step);
  Scalars scalars;
  scalars.decay = static_cast<float>(1 - config.lr * config.weight_decay);
  scalars.one_minus_beta1 = static_cast<float>(1 - config.beta1);
  scalars.beta2 = static_cast<float>(config.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1 - config.beta2);
  scalars.root_correction2 = static_cast<float>(std::sqrt(1 - std::pow(config.beta2, step)));
  scalars.eps = static_cast<float>(config.eps);
  scalars.minus_step_size = static_cast<float>(-config.lr / (1 - std::pow(config.beta1, step)));
  return scalars;
}

// Takes tensors from `next` on until the batch is full; returns how many were taken.
int fill(Batch& batch, const AdamTensor* next, int available) {
  batch.tensor_count = available < kTensorsPerLaunch ? available : kTensorsPerLaunch;
  batch.first_chunk[0] = 0;
  for (int i = 0; i < batch.tensor_count; ++i) {
    batch.tensors[i] = next[i];
    const int64_t chunk_count = (next[i].count + kChunk - 1) / kChunk;
    batch.first_chunk[i + 1] = batch.first_chunk[i] + static_cast<int>(chunk_count);
  }
  return batch.tensor_count;
}

}  // namespace

cudaError_t multi_tensor_adam(const AdamTensor* tensors, int tensor_count,
                              const AdamConfig& config, cudaStream_t stream) {
  if (tensor_count < 0 || config.step < 1) return cudaErrorInvalidValue;
  for (int i = 0; i < tensor_count; ++i) {
    if (tensors[i].count < 0) return cudaErrorInvalidValue;
  }
  const Scalars scalars = make_scalars(config);
  Batch batch;
  for (int done = 0; done < tensor_count;) {
    done += fill(batch, tensors + done, tensor_count - done);
    const int grid = batch.first_chunk[batch.tensor_count];
    if (grid == 0) continue;
    adam_kernel<<<grid, kThreads, 0, stream>>>(batch, scalars);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kernels
