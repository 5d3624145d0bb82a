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
  const auto found = ranges_.find({region.file, region.bytes.offset_bytes});
  return found != ranges_.end() && std::ranges::all_of(found->second.all(), [&](const auto& range) {
           return is_seen(range.of) && watched_[range.of].is_zero;
         });
}

void StateWatch::put_in_order() {
  for (auto& [place, ranges] : ranges_) ranges.put_in_order();
}

std::optional<size_t> StateWatch::add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                                      SummedAs summed_as) {
  const uint64_t count_bytes =
      ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
  const uint64_t begin_bytes = chunk.payload_offset_bytes;
  const bool is_inside = chunk.region.wrapping != ckpt::Wrapping::None ||
                         begin_bytes + count_bytes <= chunk.region.bytes.count_bytes;
  if (chunk.view || !is_inside || !is_scanned(dtype)) return std::nullopt;
  const uint64_t pair_bytes = kWeightsPerPair * ckpt::bytes_per_element(dtype);
  if (summed_as && begin_bytes % pair_bytes != 0) return std::nullopt;
  const Place place{chunk.region.file, chunk.region.bytes.offset_bytes};
  const Range range{begin_bytes, count_bytes, dtype};
  const auto [known, is_new] = known_.try_emplace({place, range}, watched_.size());
  if (is_new) {
    ranges_[place].add({begin_bytes, count_bytes, known->second});
    watched_.push_back({.dtype = dtype, .begin_bytes = begin_bytes, .count_bytes = count_bytes});
  }
  Watched& watched = watched_[known->second];
  if (summed_as && watched.summed_as && watched.summed_as != summed_as) return std::nullopt;
  watched.wanted = std::max(watched.wanted, wanted);
  if (summed_as) watched.summed_as = summed_as;
  return known->second;
}

void StateWatch::see(const ckpt::StoragePiece& piece) {
  see_at({piece.file, piece.region.offset_bytes}, piece);
  // In an object, which holds several, a storage is watched by its own place.
  if (piece.storage.offset_bytes != piece.region.offset_bytes) {
    see_at({piece.file, piece.storage.offset_bytes}, piece);
  }
}

void StateWatch::see_at(const Place& place, const ckpt::StoragePiece& piece) {
  const auto found = ranges_.find(place);
  if (found == ranges_.end()) return;
  const uint64_t piece_end = piece.offset_bytes + piece.bytes.size();
  const auto see_part = [&](const auto& range, uint64_t begin, uint64_t end) {
    const bool fits = range.begin_bytes + range.count_bytes <= piece.storage.count_bytes;
    const auto part = piece.bytes.subspan(begin - piece.offset_bytes, end - begin);
    if (fits) see(watched_[range.of], begin, part);
  };
  found->second.for_parts(piece.offset_bytes, piece_end, see_part);
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
