#include <kernels/symmetric.h>

#include "launch.cuh"

namespace kernels {
namespace {

constexpr int kRowsAtOnce = 8;

// A block of threads transposes a tile through shared memory; the odd column avoids bank conflicts.
template <class Word>
__global__ void __launch_bounds__(kMirrorTile* kRowsAtOnce) mirror_kernel(const MirrorRequest r) {
  __shared__ Word tile[kMirrorTile][kMirrorTile + 1];
  const int64_t first_row = int64_t{blockIdx.x} * kMirrorTile;
  const int64_t first_column = int64_t{blockIdx.y} * kMirrorTile;
  if (!is_mirrored(first_row, first_column, r.block)) return;
  for (int64_t m = blockIdx.z; m < r.batch; m += gridDim.z) {
    Word* const matrix = static_cast<Word*>(r.matrices) + m * r.edge * r.edge;
    for (int i = threadIdx.y; i < kMirrorTile; i += kRowsAtOnce) {
      const int64_t row = first_row + threadIdx.x, column = first_column + i;
      if (row < r.edge && column < r.edge) tile[i][threadIdx.x] = matrix[row + column * r.edge];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kMirrorTile; i += kRowsAtOnce) {
      const int64_t row = first_column + threadIdx.x, column = first_row + i;
      if (row < r.edge && column < r.edge) matrix[row + column * r.edge] = tile[threadIdx.x][i];
    }
    __syncthreads();  // the tile is read
  }
}

}  // namespace

cudaError_t mirror_blocks(const MirrorRequest& request, cudaStream_t stream) {
  const MirrorRequest& r = request;
  const int64_t tiles = (r.edge + kMirrorTile - 1) / kMirrorTile;
  if (r.edge < 1 || r.batch < 1 || r.block < 1 || r.block % kMirrorTile != 0 || tiles > 65535) {
    return cudaErrorInvalidValue;
  }
  const auto side = static_cast<unsigned>(tiles);
  const dim3 grid(side, side, static_cast<unsigned>(r.batch < 65535 ? r.batch : 65535));
  const LaunchShape shape = {grid, {kMirrorTile, kRowsAtOnce}, stream};
  switch (bytes_of(r.type)) {
    case 4: return launch(shape, mirror_kernel<uint32_t>, r);
    case 2: return launch(shape, mirror_kernel<uint16_t>, r);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace kernels
