#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
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

// Ranges of all storages of a checkpoint that are looked at while ckpt::verify() hands out pieces,
// or while their bytes are copied. Safe to ask from many threads once they are in order.
template <class Of>
class WatchedStorages {
 public:
  // Of a chunk that is a run of bytes of its storage.
  void add(const ckpt::Chunk& chunk, uint64_t count_bytes, Of of) {
    Ranges& ranges = ranges_[place_of(chunk.region)];
    ranges.end_bytes = chunk.region.bytes.end_bytes();
    ranges.add({chunk.payload_offset_bytes, count_bytes, std::move(of)});
  }

  void put_in_order() {  // after the last was added
    for (auto& [place, ranges] : ranges_) ranges.put_in_order();
  }

  // What was added for a storage; null: nothing.
  const WatchedRanges<Of>* find(const ckpt::StorageRegion& region) const {
    return find(place_of(region));
  }

  // Calls use(range, begin_bytes, bytes) with what each range has of a piece, and where in the
  // storage that begins.
  template <class Use>
  void for_parts(const ckpt::StoragePiece& piece, Use use) const {
    for_parts(find(Place{piece.file, piece.region.offset_bytes}), piece.offset_bytes, piece.bytes,
              use);
    // In an object, which holds several, a storage is watched by its own place.
    if (piece.storage.offset_bytes == piece.region.offset_bytes) return;
    for_parts(find(Place{piece.file, piece.storage.offset_bytes}), piece.offset_bytes, piece.bytes,
              use);
  }

  // The same of bytes as ExecuteOptions::on_read has them: a located payload lies within the region
  // that the catalog has.
  template <class Use>
  void for_parts(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<const std::byte> bytes, Use use) const {
    auto found = ranges_.upper_bound(place_of(located));
    if (found == ranges_.begin() || (--found)->first.first != located.file) return;
    if (located.bytes.end_bytes() > found->second.end_bytes) return;
    for_parts(&found->second, offset_bytes, bytes, use);
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // file, start of the region
  struct Ranges : WatchedRanges<Of> {
    uint64_t end_bytes = 0;  // of the region
  };

  static Place place_of(const ckpt::StorageRegion& region) {
    return {region.file, region.bytes.offset_bytes};
  }

  const Ranges* find(const Place& place) const {
    const auto found = ranges_.find(place);
    return found == ranges_.end() ? nullptr : &found->second;
  }

  template <class Use>
  static void for_parts(const Ranges* ranges, uint64_t start, std::span<const std::byte> bytes,
                        Use use) {
    if (ranges == nullptr) return;
    ranges->for_parts(start, start + bytes.size(),
                      [&](const auto& range, uint64_t begin, uint64_t end) {
                        use(range, begin, bytes.subspan(begin - start, end - begin));
                      });
  }

  std::map<Place, Ranges> ranges_;
};

}  // namespace optim
