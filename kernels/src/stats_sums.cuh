#pragma once

#include <kernels/grad_stats.h>

namespace kernels {

// Lane 0 gets the sum over the warp: lane l adds lane l + 16, then l + 8, ...
__device__ __forceinline__ TensorStats add_in_tree(TensorStats stats) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const TensorStats other = {__shfl_down_sync(0xFFFFFFFFU, stats.square_sum, width),
                               __shfl_down_sync(0xFFFFFFFFU, stats.zero_count, width)};
    add_stats(stats, other);
  }
  return stats;
}

// Thread 0 gets the sum over the block of kWarps warps, added in order. All threads must call.
template <int kWarps>
__device__ TensorStats add_over_block(TensorStats stats) {
  __shared__ TensorStats warps[kWarps];
  __syncthreads();  // the last call's sums are read
  stats = add_in_tree(stats);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = stats;
  __syncthreads();
  TensorStats total = {0, 0};
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kWarps; ++warp) add_stats(total, warps[warp]);
  }
  return total;
}

}  // namespace kernels
