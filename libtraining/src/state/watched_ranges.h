#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ckpt/verify.h>

namespace optim {

// Ranges of one storage that are looked at while its bytes come by in pieces, each with what it
// belongs to. One storage may have 10^5: a flat buffer, or all layers of a key. They may overlap.
template <class Of>
class WatchedRanges {
 public:
  struct Range {
    uint64_t begin_bytes = 0, count_bytes = 0;
    Of of = {};
  };

  void add(const Range& range) { ranges_.push_back(range); }

  const std::vector<Range>& all() const { return ranges_; }

  // After the last was added. Equal ones stay in the order in which they came.
  void put_in_order() {
    std::ranges::stable_sort(ranges_, {}, &Range::begin_bytes);
    reach_bytes_.clear();
    uint64_t reach_bytes = 0;
    for (const Range& range : ranges_) {
      reach_bytes = std::max(reach_bytes, range.begin_bytes + range.count_bytes);
      reach_bytes_.push_back(reach_bytes);
    }
  }

  // Calls use(range, begin, end) with what each range has of [begin_bytes, end_bytes), once they
  // are in order.
  template <class Use>
  void for_parts(uint64_t begin_bytes, uint64_t end_bytes, Use use) const {
    // Those before the first that reaches beyond the begin end before it.
    const auto reaching = std::ranges::upper_bound(reach_bytes_, begin_bytes);
    for (auto i = static_cast<size_t>(reaching - reach_bytes_.begin()); i < ranges_.size(); ++i) {
      const Range& range = ranges_[i];
      if (range.begin_bytes >= end_bytes) return;
      const uint64_t begin = std::max(begin_bytes, range.begin_bytes);
      const uint64_t end = std::min(end_bytes, range.begin_bytes + range.count_bytes);
      if (begin < end) use(range, begin, end);
    }
  }

 private:
  std::vector<Range> ranges_;          // by where they begin
  std::vector<uint64_t> reach_bytes_;  // [range] where the last of those up to it ends
};

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
