#include "layout/state_watch.h"

namespace optim {

std::optional<size_t> StateWatch::add(const ckpt::Chunk& chunk, ckpt::DType dtype, bool scans,
                                      Print print) {
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
  if (print != Print::None && watched.print != Print::None && watched.print != print) {
    return std::nullopt;
  }
  watched.scans = watched.scans || scans;
  if (print != Print::None) watched.print = print;
  return known->second;
}

void StateWatch::see(const ckpt::StoragePiece& piece) {
  const auto found = numbers_.find({piece.file, piece.region.offset_bytes});
  if (found == numbers_.end()) return;
  Watched& watched = watched_[found->second];
  if (piece.storage.count_bytes != watched.count_bytes) return;
  const uint64_t first = piece.offset_bytes / ckpt::bytes_per_element(watched.dtype);
  const ValueScan values = watched.scans ? scan(watched.dtype, piece.bytes) : ValueScan();
  uint64_t print = 0;
  switch (watched.print) {
    case Print::None: break;
    case Print::AsStored: print = fingerprint(piece.bytes, first); break;
    case Print::AsBFloat16:
      print = fingerprint_rounded(piece.bytes, ckpt::DType::BFloat16, first);
      break;
    case Print::AsFloat16:
      print = fingerprint_rounded(piece.bytes, ckpt::DType::Float16, first);
      break;
  }
  const std::scoped_lock lock(mutex_);
  watched.values.not_finite_count += values.not_finite_count;
  watched.values.negative_count += values.negative_count;
  watched.fingerprint += print;
  watched.seen_bytes += piece.bytes.size();
}

}  // namespace optim
