// The parts of flat buffers that ranks own.
// Source: DistributedOptimizer._build_model_gbuf_range of megatron/core/optimizer.
#include "grid/flat_shares.h"

#include <algorithm>

namespace optim {

ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count) {
  const uint64_t part = (bucket.range.end - bucket.range.begin) / rank_count;
  const uint64_t begin = bucket.range.begin + rank * part;
  return {begin, begin + part};
}

std::vector<FlatShare> flat_shares(const TrainingState& state, const FlatBuffers& buffers,
                                   uint32_t optimizer, const RankCoordinates& rank) {
  const ParallelSizes& sizes = buffers.placement().grid().sizes;
  const bool has_experts = buffers.has_experts(optimizer);
  const uint32_t number = has_experts ? rank.edp : rank.dp_cp;
  const uint32_t rank_count = has_experts ? sizes.expt_dp() : sizes.dp_cp();
  std::vector<FlatShare> shares;
  for (const FlatBuffer& buffer : buffers.of(optimizer, rank)) {
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      const FlatPlace& place = buffer.layout.places[i];
      const ElementRange own = own_part(buffer.layout.buckets[place.bucket], number, rank_count);
      const uint64_t begin = std::max(own.begin, place.range.begin);
      const uint64_t end = std::min(own.end, place.range.end);
      if (begin >= end) continue;
      shares.push_back({state.model[buffer.held[i].entry].param,
                        {begin - place.range.begin, end - place.range.begin}});
    }
  }
  std::ranges::stable_sort(shares, {}, &FlatShare::param);
  return shares;
}

}  // namespace optim
