#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include <ckpt/verify.h>

#include "state/watched_ranges.h"

namespace optim {

// Ranges of all storages of a checkpoint, by number, that are looked at while ckpt::verify() hands
// out pieces. Safe to ask from many threads once they are in order.
class WatchedStorages {
 public:
  // Of a chunk that is a run of bytes of its storage.
  void add(const ckpt::Chunk& chunk, uint64_t count_bytes, size_t number) {
    ranges_[place_of(chunk.region)].add({chunk.payload_offset_bytes, count_bytes, number});
  }

  void put_in_order() {  // after the last was added
    for (auto& [place, ranges] : ranges_) ranges.put_in_order();
  }

  // What was added for a storage; null: nothing.
  const WatchedRanges<size_t>* find(const ckpt::StorageRegion& region) const {
    return find(place_of(region));
  }

  // Calls use(range, begin_bytes, bytes) with what each range has of a piece, and where in the
  // storage that begins.
  template <class Use>
  void for_parts(const ckpt::StoragePiece& piece, Use use) const {
    for_parts(find(Place{piece.file, piece.region.offset_bytes}), piece, use);
    // In an object, which holds several, a storage is watched by its own place.
    if (piece.storage.offset_bytes == piece.region.offset_bytes) return;
    for_parts(find(Place{piece.file, piece.storage.offset_bytes}), piece, use);
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // file, start of the region

  static Place place_of(const ckpt::StorageRegion& region) {
    return {region.file, region.bytes.offset_bytes};
  }

  const WatchedRanges<size_t>* find(const Place& place) const {
    const auto found = ranges_.find(place);
    return found == ranges_.end() ? nullptr : &found->second;
  }

  template <class Use>
  static void for_parts(const WatchedRanges<size_t>* ranges, const ckpt::StoragePiece& piece,
                        Use use) {
    if (ranges == nullptr) return;
    const uint64_t start = piece.offset_bytes;
    ranges->for_parts(start, start + piece.bytes.size(),
                      [&](const auto& range, uint64_t begin, uint64_t end) {
                        use(range, begin, piece.bytes.subspan(begin - start, end - begin));
                      });
  }

  std::map<Place, WatchedRanges<size_t>> ranges_;
};

}  // namespace optim
