#include <kernels/grad_stats.h>

#include "launch.cuh"
#include "packed.cuh"
#include "stats_sums.cuh"

namespace kernels {
namespace {

constexpr int kVectorsInFlight = 4;

// One thread's elements of a chunk, in order.
template <ElementType kGrad>
__device__ TensorStats thread_stats(const TensorSlot& slot, int64_t begin, float inverse_scale) {
  constexpr int N = stats_vector(kGrad);
  constexpr int kBytes = bytes_of(kGrad);
  constexpr int64_t kStride = int64_t{N} * kStatsThreads;
  const int64_t end = begin + kChunkElements < slot.count ? begin + kChunkElements : slot.count;
  const int64_t vector_end = slot.is_aligned ? begin + (end - begin) / N * N : begin;
  ElementSums sums = {0, 0};
  int64_t first = begin + int64_t{N} * threadIdx.x;
  while (first + (kVectorsInFlight - 1) * kStride < vector_end) {
    Packed<N> vectors[kVectorsInFlight];
#pragma unroll
    for (int v = 0; v < kVectorsInFlight; ++v) {
      vectors[v].load(slot.grad, first + v * kStride, kBytes);
    }
#pragma unroll
    for (int v = 0; v < kVectorsInFlight; ++v) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        add_element(sums, decode(kGrad, vectors[v].get(i, kBytes)) * inverse_scale);
      }
    }
    first += kVectorsInFlight * kStride;
  }
  for (; first < end; first += kStride) {
    const int64_t last = first + N < end ? first + N : end;
    for (int64_t i = first; i < last; ++i) {
      add_element(sums, decode(kGrad, load_one(slot.grad, i, kBytes)) * inverse_scale);
    }
  }
  return stats_of(sums);
}

template <ElementType kGrad>
__global__ void __launch_bounds__(kStatsThreads) chunk_stats(const GradStatsRequest request) {
  const float inverse_scale = request.control->inverse_loss_scale;
  for (uint32_t c = blockIdx.x; c < request.table.chunk_count; c += gridDim.x) {
    const Chunk chunk = request.table.chunks[c];
    const TensorSlot slot = request.table.slots[chunk.slot];
    if (slot.stats_index == kNoStats) continue;
    const TensorStats mine = thread_stats<kGrad>(slot, chunk.index * kChunkElements, inverse_scale);
    const TensorStats total = add_over_block<kStatsThreads / 32>(mine);
    if (threadIdx.x == 0) request.partials[c] = total;
  }
}

// A warp per tensor.
__global__ void __launch_bounds__(kStatsThreads) tensor_stats(const GradStatsRequest request) {
  const uint32_t warp = (blockIdx.x * kStatsThreads + threadIdx.x) / 32;
  if (warp >= request.table.slot_count) return;
  const TensorSlot& slot = request.table.slots[warp];
  if (slot.stats_index == kNoStats) return;
  const auto chunk_count =
      static_cast<uint32_t>((slot.count + kChunkElements - 1) / kChunkElements);
  TensorStats stats = {0, 0};
  for (uint32_t c = threadIdx.x % 32; c < chunk_count; c += 32) {
    add_stats(stats, request.partials[slot.first_chunk + c]);
  }
  stats = add_in_tree(stats);
  if (threadIdx.x % 32 == 0) request.tensors[slot.stats_index] = stats;
}

using StatsKernel = void (*)(GradStatsRequest);

StatsKernel chunk_stats_of(ElementType grad) {
  switch (grad) {
    case ElementType::F32: return chunk_stats<ElementType::F32>;
    case ElementType::BF16: return chunk_stats<ElementType::BF16>;
    case ElementType::F16: return chunk_stats<ElementType::F16>;
    default: return nullptr;
  }
}

}  // namespace

cudaError_t grad_stats(const GradStatsRequest& request, cudaStream_t stream) {
  const TensorTable& table = request.table;
  const auto by_chunk = chunk_stats_of(table.types.grad);
  if (request.block_count < 1 || by_chunk == nullptr) return cudaErrorInvalidValue;
  if (table.slot_count == 0) return cudaSuccess;
  const auto chunks = static_cast<int64_t>(table.chunk_count);
  const auto blocks =
      static_cast<unsigned>(chunks < request.block_count ? chunks : request.block_count);
  constexpr unsigned kPerBlock = kStatsThreads / 32;
  const unsigned tensor_blocks = (table.slot_count + kPerBlock - 1) / kPerBlock;
  return launch_in_order(
      [&] {
        if (blocks == 0) return cudaSuccess;
        return launch({blocks, kStatsThreads, stream}, by_chunk, request);
      },
      [&] {
        return launch({tensor_blocks, kStatsThreads, stream}, tensor_stats, request);
      });
}

}  // namespace kernels
