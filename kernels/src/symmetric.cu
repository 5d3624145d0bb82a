// What Newton-Schulz on a Gram matrix does between its products: adds up, and copies what was
// computed on one side of the diagonal to the other.
#include <kernels/symmetric.h>

#include "launch.cuh"
#include "values.cuh"

namespace kernels {

namespace {

constexpr int kRowsAtOnce = 8;
constexpr int64_t kMatricesAtOnce = 1024;  // blocks take turns on more

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

constexpr int kCombineThreads = 256;

template <ElementType kType>
constexpr int kCombineVector = 16 / bytes_of(kType);

template <ElementType kType, int N>
__device__ __forceinline__ void combine_some(const CombineRequest& r, int64_t first) {
  constexpr int kBytes = bytes_of(kType);
  Packed<N> x, y, sum;
  x.load(r.x, first, kBytes);
  y.load(r.y, first, kBytes);
  Values<N> xs, ys;
  decode(kType, x, xs);
  decode(kType, y, ys);
#pragma unroll
  for (int i = 0; i < N; ++i) xs.at[i] = r.p * xs.at[i] + r.q * ys.at[i];
  encode(kType, xs, sum);
  sum.store(r.sum, first, kBytes);
}

// A vector for each thread, then an element for each of the last ones.
template <ElementType kType>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineRequest r) {
  constexpr int kVector = kCombineVector<kType>;
  const int64_t vectors = r.count / kVector;
  const int64_t thread = int64_t{blockIdx.x} * kCombineThreads + threadIdx.x;
  if (thread < vectors) return combine_some<kType, kVector>(r, thread * kVector);
  const int64_t element = vectors * kVector + (thread - vectors);
  if (element < r.count) combine_some<kType, 1>(r, element);
}

template <ElementType kType>
cudaError_t launch_combine(const CombineRequest& r, cudaStream_t stream) {
  constexpr int kVector = kCombineVector<kType>;
  const int64_t threads = r.count / kVector + r.count % kVector;
  const int64_t blocks = (threads + kCombineThreads - 1) / kCombineThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch({static_cast<unsigned>(blocks), kCombineThreads, stream}, combine_kernel<kType>, r);
}

}  // namespace

cudaError_t mirror_blocks(const MirrorRequest& request, cudaStream_t stream) {
  const MirrorRequest& r = request;
  const int64_t tiles = (r.edge + kMirrorTile - 1) / kMirrorTile;
  if (r.edge < 1 || r.batch < 1 || r.block < 1 || r.block % kMirrorTile != 0 || tiles > 65535) {
    return cudaErrorInvalidValue;
  }
  const auto side = static_cast<unsigned>(tiles);
  const dim3 grid(side, side,
                  static_cast<unsigned>(r.batch < kMatricesAtOnce ? r.batch : kMatricesAtOnce));
  const LaunchShape shape = {grid, {kMirrorTile, kRowsAtOnce}, stream};
  switch (bytes_of(r.type)) {
    case 4: return launch(shape, mirror_kernel<uint32_t>, r);
    case 2: return launch(shape, mirror_kernel<uint16_t>, r);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t combine(const CombineRequest& request, cudaStream_t stream) {
  if (request.count < 0) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  switch (request.type) {
    case ElementType::F32: return launch_combine<ElementType::F32>(request, stream);
    case ElementType::F16: return launch_combine<ElementType::F16>(request, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace kernels
