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

std::span<const size_t> StateWatch::numbers_in(const ckpt::StorageRegion& region) const {
  const auto found = numbers_.find({region.file, region.bytes.offset_bytes});
  return found == numbers_.end() ? std::span<const size_t>() : found->second;
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
    numbers_[place].push_back(known->second);
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
  const auto found = numbers_.find(place);
  if (found == numbers_.end()) return;
  for (const size_t number : found->second) see(watched_[number], piece);
}

// Pieces of a storage are cut at whole pairs of words.
void StateWatch::see(Watched& watched, const ckpt::StoragePiece& piece) {
  const uint64_t end_bytes = watched.begin_bytes + watched.count_bytes;
  const uint64_t begin = std::max(piece.offset_bytes, watched.begin_bytes);
  const uint64_t end = std::min(piece.offset_bytes + piece.bytes.size(), end_bytes);
  if (piece.storage.count_bytes < end_bytes || begin >= end) return;
  const auto bytes = piece.bytes.subspan(begin - piece.offset_bytes, end - begin);
  const uint64_t first = (begin - watched.begin_bytes) / ckpt::bytes_per_element(watched.dtype);
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
