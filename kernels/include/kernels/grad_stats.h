#pragma once

#include <cuda_runtime_api.h>

#include <kernels/element.h>
#include <kernels/step_control.h>
#include <kernels/tensor_table.h>

namespace kernels {

// Sum of squares and number of zeros of every gradient of a table, in one pass: a gradient is
// infinite or NaN exactly if its sum is. Sums are fp64, in an order that the number of elements and
// their type decide, so the same gradients give the same bits in every run.
struct GradStatsRequest {
  TensorTable table;           // of its slots: grad, count, stats_index, first_chunk, is_aligned
  const StepControl* control;  // device memory; its inverse_loss_scale is applied first
  TensorStats* partials;       // device memory, table.chunk_count of them
  TensorStats* tensors;        // device memory, written at each stats_index
  int block_count;             // from persistent_blocks()
};

// Queues on `stream`; allocates nothing, waits for nothing. cudaErrorInvalidValue for gradients
// that are not F32, BF16 or F16.
cudaError_t grad_stats(const GradStatsRequest& request, cudaStream_t stream);

// The order of the sums, which a twin follows. A chunk's elements are dealt to kStatsThreads
// threads, vectors of stats_vector() at a time; each adds its own in order; add_in_tree() joins 32
// threads, then the eight warps are added in order. A tensor's chunks are dealt to 32 threads,
// joined by add_in_tree(); those of a tensor that has_many_chunks() to kStatsThreads, joined as
// those of a chunk.
constexpr int kStatsThreads = 256;
CKPT_HOST_DEVICE constexpr bool has_many_chunks(int64_t chunk_count) { return chunk_count > 128; }
CKPT_HOST_DEVICE constexpr int stats_vector(ElementType grad) { return 16 / bytes_of(grad); }

// One thread's elements. fp64 is slow on many GPUs: one operation an element, and one that widens.
struct ElementSums {
  double square_sum;
  uint32_t zero_count;
};

CKPT_HOST_DEVICE void add_element(ElementSums& sums, float value) {
  const auto wide = static_cast<double>(value);
  sums.square_sum = fma(wide, wide, sums.square_sum);  // the product is exact: one rounding
  sums.zero_count += value == 0 ? 1 : 0;
}

CKPT_HOST_DEVICE TensorStats stats_of(const ElementSums& sums) {
  return {sums.square_sum, static_cast<double>(sums.zero_count)};
}

CKPT_HOST_DEVICE void add_stats(TensorStats& stats, const TensorStats& other) {
  stats.square_sum += other.square_sum;
  stats.zero_count += other.zero_count;
}

}  // namespace kernels
