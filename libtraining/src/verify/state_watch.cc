#include "verify/state_watch.h"

#include <algorithm>
#include <span>

#include "state/weight_sum.h"

namespace optim {
namespace {

bool is_all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

bool StateWatch::is_zero(const ckpt::StorageRegion& region) const {
  const WatchedRanges<size_t>* const found = ranges_.find(region);
  return found != nullptr && std::ranges::all_of(found->all(), [&](const auto& range) {
           return is_seen(range.of) && watched_[range.of].is_zero;
         });
}

std::optional<size_t> StateWatch::add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                                      SummedAs summed_as) {
  const uint64_t count_bytes =
      ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
  const uint64_t begin_bytes = chunk.payload_offset_bytes;
  const bool is_inside = chunk.region.wrapping != ckpt::Wrapping::None ||
                         begin_bytes + count_bytes <= chunk.region.bytes.count_bytes;
  if (chunk.view || !is_inside || !is_scanned(dtype)) return std::nullopt;
  if (begin_bytes % ckpt::bytes_per_element(dtype) != 0) return std::nullopt;
  const uint64_t pair_bytes = kWeightsPerPair * ckpt::bytes_per_element(dtype);
  if (summed_as && begin_bytes % pair_bytes != 0) return std::nullopt;
  const Place place{chunk.region.file, chunk.region.bytes.offset_bytes};
  const Range range{begin_bytes, count_bytes, dtype};
  const auto [known, is_new] = known_.try_emplace({place, range}, watched_.size());
  if (is_new) {
    ranges_.add(chunk, count_bytes, known->second);
    watched_.push_back({.dtype = dtype, .begin_bytes = begin_bytes, .count_bytes = count_bytes});
  }
  Watched& watched = watched_[known->second];
  if (summed_as && watched.summed_as && watched.summed_as != summed_as) return std::nullopt;
  watched.wanted = std::max(watched.wanted, wanted);
  if (summed_as) watched.summed_as = summed_as;
  return known->second;
}

void StateWatch::see(const ckpt::StoragePiece& piece) {
  ranges_.for_parts(piece, [&](const auto& range, uint64_t begin_bytes, auto bytes) {
    const bool fits = range.begin_bytes + range.count_bytes <= piece.storage.count_bytes;
    if (fits) see(watched_[range.of], begin_bytes, bytes);
  });
}

// Pieces of a storage are cut at whole pairs of words.
void StateWatch::see(Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes) {
  const uint64_t first =
      (begin_bytes - watched.begin_bytes) / ckpt::bytes_per_element(watched.dtype);
  const ValueScan values = scan(watched.dtype, bytes, watched.wanted);
  uint64_t sum = 0;
  if (watched.summed_as) {
    sum = watched.dtype == ckpt::DType::Float32 ? sum_of_masters(bytes, first, *watched.summed_as)
                                                : sum_of_weights(bytes, first, watched.dtype);
  }
  const bool is_zero = is_all_zero(bytes);  // stops at the first that is not
  const std::scoped_lock lock(mutex_);
  watched.is_zero = watched.is_zero && is_zero;
  watched.values.add(values, first);
  watched.weight_sum += sum;
  watched.seen_bytes += bytes.size();
}

}  // namespace optim
