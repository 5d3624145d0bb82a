#include "repair/bucket_windows.h"

#include <algorithm>

#include "grid/layer_wise_view.h"

namespace optim {

BucketWindows::BucketWindows(const TrainingState& state)
    : state_(state),
      placement_(state, state.grid),
      params_(state.params),
      groups_(group_params(state.args(), state.grid.sizes, params_)),
      arguments_(flat_arguments(state.args(), "args")),
      buffers_(state, placement_, groups_, arguments_) {
  const ParallelSizes& sizes = state.grid.sizes;
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const bool has_experts = buffers_.has_experts(optimizer);
    const uint32_t expert_ranks = has_experts ? sizes.expert_parallel : 1;
    for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
      for (uint32_t expert = 0; expert < expert_ranks; ++expert) {
        for (uint32_t rank = 0; rank < tensor_ranks(sizes, has_experts); ++rank) {
          RankCoordinates at;
          at.pp = stage;
          at.ep = expert;
          at.tp = at.etp = rank;
          add(optimizer, at, rank);
        }
      }
    }
  }
}

void BucketWindows::add(uint32_t optimizer, const RankCoordinates& at, uint32_t tensor_rank) {
  for (const FlatBuffer& buffer : buffers_.of(optimizer, at)) {
    WindowedBuffer windowed_buffer{at, tensor_rank, buffer.layout.unpadded_count(), {}};
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      windowed_buffer.params.push_back(windowed(buffer, i, windowed_buffer));
    }
    std::ranges::sort(windowed_buffer.params, {},
                      [](const WindowedParam& one) { return one.window.begin; });
    const bool is_displaced = std::ranges::any_of(
        windowed_buffer.params,
        [](const WindowedParam& one) { return one.is_stored && one.shift != 0; });
    if (is_displaced) displaced_.push_back(std::move(windowed_buffer));
  }
}

WindowedParam BucketWindows::windowed(const FlatBuffer& buffer, size_t i,
                                      const WindowedBuffer& of) const {
  const HeldEntry& held = buffer.held[i];
  const uint32_t param = state_.model[held.entry].param;
  const FlatPlace& place = buffer.layout.places[i];
  const FlatBucket& bucket = buffer.layout.buckets[place.bucket];
  const bool is_replica = placement_.tensor_ranks(param) == 1 && of.tensor_rank != 0;
  return {param, place.range, bucket.range.begin - bucket.compact_begin,
          placement_.is_first_copy(held, of.at.pp) && !is_replica};
}

// Windows do not overlap, so that they are in the order of their ends, too.
std::vector<ElementRange> uncovered(const WindowedBuffer& buffer, const WindowedParam& param) {
  const ElementRange own = param.own();
  std::vector<ElementRange> gaps;
  uint64_t next = own.begin;
  auto other = std::ranges::partition_point(
      buffer.params, [&](const WindowedParam& one) { return one.window.end <= own.begin; });
  for (; other != buffer.params.end() && other->window.begin < own.end; ++other) {
    const uint64_t begin = std::max(other->window.begin, next);
    const uint64_t end = std::min({other->window.end, own.end, buffer.element_count});
    if (!other->is_stored || begin >= end) continue;
    if (begin > next) gaps.push_back({next, begin});
    next = end;
  }
  if (next < own.end) gaps.push_back({next, own.end});
  return gaps;
}

}  // namespace optim
