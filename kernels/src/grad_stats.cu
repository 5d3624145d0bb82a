#include <kernels/grad_stats.h>

#include "launch.cuh"
#include "stats_sums.cuh"
#include "traversal.cuh"
#include "values.cuh"
#include "with_types.h"

namespace kernels {
namespace {

static_assert(kStatsThreads == kChunkThreads);

// One thread's elements of a chunk, in order.
template <ElementType kGrad>
struct StatsWork {
  static constexpr int kVector = stats_vector(kGrad), kUnroll = 4;
  static constexpr bool kKeepsOrder = true;
  template <int N>
  using Vector = Packed<N>;

  const void* grad;
  float inverse_scale;
  ElementSums sums;

  template <int N>
  __device__ __forceinline__ void load(Packed<N>& v, int first) const {
    v.load(grad, first, bytes_of(kGrad));
  }
  template <int N>
  __device__ __forceinline__ void use(const Packed<N>& v, int) {
    Values<N> values;
    decode(kGrad, v, values);
#pragma unroll
    for (int i = 0; i < N; ++i) add_element(sums, values.at[i] * inverse_scale);
  }
};

template <ElementType kGrad>
__global__ void __launch_bounds__(kChunkThreads, kBlocksPerSm)
    chunk_stats(const GradStatsRequest request) {
  const float inverse_scale = request.control->inverse_loss_scale;
  const TensorTable& table = request.table;
  for_chunks(table.chunks, table.chunk_count, [&](uint32_t c, const Chunk& chunk) {
    const TensorSlot& slot = table.slots[chunk.slot];
    if (slot.stats_index == kNoStats) return;
    const Piece piece = piece_of(chunk, slot.count, slot.is_aligned != 0);
    StatsWork<kGrad> work = {
        behind(slot.grad, piece.begin, bytes_of(kGrad)), inverse_scale, {0, 0}};
    for_elements(piece, work);
    const TensorStats total = add_over_block<kChunkThreads / 32>(stats_of(work.sums));
    if (threadIdx.x == 0) request.partials[c] = total;
  });
}

// The partials of a slot that thread `first` of `threads` adds.
__device__ __forceinline__ TensorStats add_partials(const GradStatsRequest& request,
                                                    const TensorSlot& slot, uint32_t first,
                                                    uint32_t threads) {
  const auto chunk_count = static_cast<uint32_t>(chunks_of(slot.count));
  TensorStats stats = {0, 0};
  for (uint32_t c = first; c < chunk_count; c += threads) {
    add_stats(stats, request.partials[slot.first_chunk + c]);
  }
  return stats;
}

// A warp per tensor; for each of a block's tensors that has many chunks, the whole block.
__global__ void __launch_bounds__(kChunkThreads) tensor_stats(const GradStatsRequest request) {
  constexpr uint32_t kWarps = kChunkThreads / 32;
  const TensorTable& table = request.table;
  const uint32_t first = blockIdx.x * kWarps;
  for (uint32_t t = first; t < first + kWarps && t < table.slot_count; ++t) {
    const TensorSlot& slot = table.slots[t];
    if (slot.stats_index == kNoStats) continue;
    const bool is_long = has_many_chunks(chunks_of(slot.count));
    if (!is_long && threadIdx.x / 32 != t - first) continue;
    const uint32_t thread = is_long ? threadIdx.x : threadIdx.x % 32;
    const TensorStats own = add_partials(request, slot, thread, is_long ? kChunkThreads : 32);
    const TensorStats total = is_long ? add_over_block<kWarps>(own) : add_in_tree(own);
    if (thread == 0) request.tensors[slot.stats_index] = total;
  }
}

using GradTypes = AnyOf<ElementType::F32, ElementType::BF16, ElementType::F16>;

}  // namespace

cudaError_t grad_stats(const GradStatsRequest& request, cudaStream_t stream) {
  const TensorTable& table = request.table;
  if (request.block_count < 1) return cudaErrorInvalidValue;
  constexpr unsigned kPerBlock = kChunkThreads / 32;
  const LaunchShape per_tensor = {(table.slot_count + kPerBlock - 1) / kPerBlock, kChunkThreads,
                                  stream};
  return launch_in_order(
      [&] {
        return with_types(GradTypes(), table.types.grad, [&](auto grad) {
          if (table.chunk_count == 0) return cudaSuccess;
          const unsigned blocks = blocks_for(table.chunk_count, request.block_count);
          return launch({blocks, kChunkThreads, stream}, chunk_stats<decltype(grad)::kValue>,
                        request);
        });
      },
      [&] {
        if (table.slot_count == 0) return cudaSuccess;
        return launch(per_tensor, tensor_stats, request);
      });
}

}  // namespace kernels
