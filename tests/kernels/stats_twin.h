#pragma once

#include <kernels/grad_stats.h>
#include <kernels/prepare_step.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/update_twin.h"

namespace kernels {

// grad_stats() and finish_step_control() on the CPU: the same sums in the same order.

inline TensorStats add_in_tree(std::array<TensorStats, 32> lanes) {
  for (size_t width = 16; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) add_stats(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

// Sums of `threads` threads: each warp in a tree, warps in order.
inline TensorStats add_over_block(const std::vector<TensorStats>& threads) {
  TensorStats total = {0, 0};
  for (size_t warp = 0; warp < threads.size(); warp += 32) {
    std::array<TensorStats, 32> lanes;
    std::copy_n(threads.begin() + static_cast<std::ptrdiff_t>(warp), 32, lanes.begin());
    add_stats(total, add_in_tree(lanes));
  }
  return total;
}

inline TensorStats add_over_block(const std::vector<ElementSums>& threads) {
  std::vector<TensorStats> stats;
  for (const ElementSums& sums : threads) stats.push_back(stats_of(sums));
  return add_over_block(stats);
}

inline TensorStats chunk_twin(const TensorSlot& slot, ElementType type, int64_t begin,
                              float inverse_scale) {
  const int64_t end = std::min(begin + kChunkElements, slot.count);
  const int64_t vector = stats_vector(type);
  std::vector<ElementSums> threads(kStatsThreads, ElementSums{0, 0});
  for (int64_t i = begin; i < end; ++i) {
    const auto thread = static_cast<size_t>((i - begin) / vector % kStatsThreads);
    add_element(threads[thread], decode(type, stored_bits(slot.grad, i, type)) * inverse_scale);
  }
  return add_over_block(threads);
}

inline TensorStats stats_twin(const TensorSlot& slot, ElementType type, float inverse_scale) {
  std::vector<TensorStats> threads(has_many_chunks(chunks_of(slot.count)) ? kStatsThreads : 32);
  for (int64_t c = 0; c < chunks_of(slot.count); ++c) {
    add_stats(threads[static_cast<size_t>(c) % threads.size()],
              chunk_twin(slot, type, c * kChunkElements, inverse_scale));
  }
  return add_over_block(threads);
}

inline void control_twin(StepControl& control, const std::vector<TensorStats>& tensors) {
  std::vector<TensorStats> threads(kControlThreads, TensorStats{0, 0});
  for (size_t i = 0; i < tensors.size(); ++i) add_stats(threads[i % kControlThreads], tensors[i]);
  set_control(control, add_over_block(threads));
}

}  // namespace kernels
