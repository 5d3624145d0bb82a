#include <kernels/grad_pointers.h>

#include "launch.cuh"

namespace kernels {
namespace {

struct GradPointers {
  const void* values[kGradsPerLaunch];
};

// Entry: TensorSlot or MuonMatrix.
template <class Entry>
__global__ void grads_kernel(Entry* entries, const GradPointers grads, uint32_t count) {
  const uint32_t i = threadIdx.x;
  if (i >= count) return;
  entries[i].grad = grads.values[i];
  entries[i].is_aligned = is_aligned(entries[i]) ? 1 : 0;
}

template <class Entry>
cudaError_t write_grads(Entry* entries, const void* const* grads, uint32_t count,
                        cudaStream_t stream) {
  for (uint32_t first = 0; first < count; first += kGradsPerLaunch) {
    const uint32_t left = count - first;
    const uint32_t some = left < kGradsPerLaunch ? left : kGradsPerLaunch;
    GradPointers pointers = {};
    for (uint32_t i = 0; i < some; ++i) pointers.values[i] = grads[first + i];
    const cudaError_t error =
        launch({1, kGradsPerLaunch, stream}, grads_kernel<Entry>, entries + first, pointers, some);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t set_grads(TensorSlot* slots, const void* const* grads, uint32_t count,
                      cudaStream_t stream) {
  return write_grads(slots, grads, count, stream);
}

cudaError_t set_grads(MuonMatrix* matrices, const void* const* grads, uint32_t count,
                      cudaStream_t stream) {
  return write_grads(matrices, grads, count, stream);
}

}  // namespace kernels
