#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace optim
