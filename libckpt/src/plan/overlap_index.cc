#include "plan/overlap_index.h"

#include <algorithm>
#include <numeric>

namespace ckpt {

namespace {

uint64_t start_of(const Box& box) { return box.offsets.empty() ? 0 : box.offsets[0]; }
uint64_t length_of(const Box& box) { return box.sizes.empty() ? 1 : box.sizes[0]; }

}  // namespace

OverlapIndex::OverlapIndex(std::vector<Box> boxes)
    : boxes_(std::move(boxes)), by_start_(boxes_.size()) {
  std::iota(by_start_.begin(), by_start_.end(), 0u);
  std::ranges::stable_sort(by_start_, {}, [&](uint32_t i) { return start_of(boxes_[i]); });
  for (const Box& box : boxes_) longest_ = std::max(longest_, length_of(box));
}

std::vector<Overlap> OverlapIndex::find(const Box& query) const {
  const auto start = [&](uint32_t i) { return start_of(boxes_[i]); };
  // A box that starts more than the longest length before the query ends before it.
  const uint64_t first = start_of(query) - std::min(start_of(query), longest_);
  const uint64_t end = start_of(query) + length_of(query);
  std::vector<Overlap> overlaps;
  auto it = std::ranges::lower_bound(by_start_, first, {}, start);
  for (; it != by_start_.end() && start(*it) < end; ++it) {
    if (auto part = intersect(boxes_[*it], query)) overlaps.push_back({*it, std::move(*part)});
  }
  std::ranges::sort(overlaps, {}, &Overlap::box);
  return overlaps;
}

}  // namespace ckpt
