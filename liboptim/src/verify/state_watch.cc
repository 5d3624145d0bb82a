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

std::optional<size_t> StateWatch::number_of(const ckpt::StorageRegion& region) const {
  const auto found = numbers_.find({region.file, region.bytes.offset_bytes});
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<size_t> StateWatch::add(const ckpt::Chunk& chunk, ckpt::DType dtype, Wanted wanted,
                                      SummedAs summed_as) {
  const uint64_t count_bytes =
      ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
  const bool is_whole = !chunk.view && chunk.payload_offset_bytes == 0 &&
                        (chunk.region.wrapping != ckpt::Wrapping::None ||
                         chunk.region.bytes.count_bytes == count_bytes);
  if (!is_whole || !is_scanned(dtype)) return std::nullopt;
  const Place place{chunk.region.file, chunk.region.bytes.offset_bytes};
  const auto [known, is_new] = numbers_.try_emplace(place, watched_.size());
  if (is_new) watched_.push_back({.dtype = dtype, .count_bytes = count_bytes});
  Watched& watched = watched_[known->second];
  if (watched.dtype != dtype || watched.count_bytes != count_bytes) return std::nullopt;
  if (summed_as && watched.summed_as && watched.summed_as != summed_as) return std::nullopt;
  watched.wanted = std::max(watched.wanted, wanted);
  if (summed_as) watched.summed_as = summed_as;
  return known->second;
}

void StateWatch::see(const ckpt::StoragePiece& piece) {
  const auto found = numbers_.find({piece.file, piece.region.offset_bytes});
  if (found == numbers_.end()) return;
  Watched& watched = watched_[found->second];
  if (piece.storage.count_bytes != watched.count_bytes) return;
  const uint64_t first = piece.offset_bytes / ckpt::bytes_per_element(watched.dtype);
  const ValueScan values = scan(watched.dtype, piece.bytes, watched.wanted);
  uint64_t sum = 0;
  if (watched.summed_as) {
    sum = watched.dtype == ckpt::DType::Float32
              ? sum_of_masters(piece.bytes, first, *watched.summed_as)
              : sum_of_weights(piece.bytes, first, watched.dtype);
  }
  const bool is_zero = is_all_zero(piece.bytes);  // stops at the first that is not
  const std::scoped_lock lock(mutex_);
  watched.is_zero = watched.is_zero && is_zero;
  watched.values.add(values, first);
  watched.weight_sum += sum;
  watched.seen_bytes += piece.bytes.size();
}

}  // namespace optim
