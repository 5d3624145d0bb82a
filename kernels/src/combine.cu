// What Newton-Schulz on a Gram matrix adds up between its products.
#include <kernels/combine.h>

#include "launch.cuh"
#include "values.cuh"

namespace kernels {
namespace {

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
