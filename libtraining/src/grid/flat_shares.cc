// The parts of flat buffers that ranks own.
// Source: DistributedOptimizer._build_model_gbuf_range of megatron/core/optimizer.
#include "grid/flat_shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace optim {

ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count) {
  const uint64_t part = (bucket.range.end - bucket.range.begin) / rank_count;
  const uint64_t begin = bucket.range.begin + rank * part;
  return {begin, begin + part};
}

const std::vector<FlatShares::Buffer>& FlatShares::held_by(const Holders& holders,
                                                           const RankCoordinates& rank) {
  const auto [known, is_new] = known_.try_emplace(holders);
  if (!is_new) return known->second;
  for (FlatBuffer& laid_out : buffers_.of(std::get<0>(holders), rank)) {
    Buffer& buffer = known->second.emplace_back(Buffer{std::move(laid_out), {}});
    const std::vector<FlatPlace>& places = buffer.laid_out.layout.places;
    buffer.order.resize(places.size());
    std::iota(buffer.order.begin(), buffer.order.end(), 0u);
    std::ranges::sort(buffer.order, {}, [&](uint32_t place) { return places[place].range.begin; });
  }
  return known->second;
}

void FlatShares::add(const Buffer& buffer, ElementRange own, std::vector<FlatShare>& shares) const {
  const std::vector<FlatPlace>& places = buffer.laid_out.layout.places;
  auto at = std::ranges::upper_bound(buffer.order, own.begin, {},
                                     [&](uint32_t place) { return places[place].range.end; });
  for (; at != buffer.order.end() && places[*at].range.begin < own.end; ++at) {
    const ElementRange& whole = places[*at].range;
    const uint64_t begin = std::max(own.begin, whole.begin), end = std::min(own.end, whole.end);
    if (begin >= end) continue;
    shares.push_back({state_.model[buffer.laid_out.held[*at].entry].param,
                      {begin - whole.begin, end - whole.begin}});
  }
}

std::vector<FlatShare> FlatShares::of(uint32_t optimizer, const RankCoordinates& rank) {
  const uint32_t number = buffers_.number_among_sharing(optimizer, rank);
  const uint32_t rank_count = buffers_.sharing_ranks(optimizer);
  std::vector<FlatShare> shares;
  for (const Buffer& buffer : held_by({optimizer, rank.pp, rank.ep}, rank)) {
    for (const FlatBucket& bucket : buffer.laid_out.layout.buckets) {
      add(buffer, own_part(bucket, number, rank_count), shares);
    }
  }
  std::ranges::stable_sort(shares, {}, &FlatShare::param);
  return shares;
}

}  // namespace optim
