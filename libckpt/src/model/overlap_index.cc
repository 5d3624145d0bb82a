#include "model/overlap_index.h"

#include <algorithm>

#include "base/checked_math.h"

namespace ckpt {
namespace {

constexpr uint32_t kLeafMax = 8;  // boxes that are tested one by one

uint64_t end_of(const Box& box, size_t dim) {
  return checked_add(box.offsets[dim], box.sizes[dim]).value_or(~uint64_t{0});
}

bool has_elements(const Box& box) {
  return std::ranges::find(box.sizes, uint64_t{0}) == box.sizes.end();
}

}  // namespace

OverlapIndex::OverlapIndex(std::span<const Chunk> chunks) {
  build(chunks.size(), [&](uint32_t i) -> const Box& { return chunks[i].box; });
}

OverlapIndex::OverlapIndex(std::span<const CopyOp> copies) {
  build(copies.size(), [&](uint32_t i) -> const Box& { return copies[i].overlap; });
}

void OverlapIndex::build(size_t count, const BoxAt& box_at) {
  if (count == 0) return;
  dims_ = box_at(0).sizes.size();
  for (uint32_t i = 0; i < count; ++i) {
    const Box& box = box_at(i);
    if (box.offsets.size() == dims_ && box.sizes.size() == dims_ && has_elements(box)) {
      order_.push_back(i);
    }
  }
  if (order_.empty()) return;
  ranges_.resize(order_.size() * 2 * dims_);
  split(0, static_cast<uint32_t>(order_.size()), box_at);
}

// Adds the node of these positions and all below it. As deep as log2 of the boxes.
void OverlapIndex::split(uint32_t begin, uint32_t end, const BoxAt& box_at) {
  const size_t node = nodes_.size();
  nodes_.push_back({begin, end, 0});
  bounds_.resize(bounds_.size() + 2 * dims_);
  if (dims_ == 0 || end - begin <= kLeafMax) {
    store_ranges(begin, end, box_at);
  } else {
    const size_t dim = widest_dim(begin, end, box_at);
    const uint32_t middle = begin + (end - begin) / 2;
    std::nth_element(
        order_.begin() + begin, order_.begin() + middle, order_.begin() + end,
        [&](uint32_t a, uint32_t b) { return box_at(a).offsets[dim] < box_at(b).offsets[dim]; });
    split(begin, middle, box_at);
    nodes_[node].right = static_cast<uint32_t>(nodes_.size());
    split(middle, end, box_at);
  }
  bound(node);
}

void OverlapIndex::store_ranges(uint32_t begin, uint32_t end, const BoxAt& box_at) {
  for (size_t position = begin; position < end; ++position) {
    const Box& box = box_at(order_[position]);
    for (size_t d = 0; d < dims_; ++d) {
      ranges_[(position * dims_ + d) * 2] = box.offsets[d];
      ranges_[(position * dims_ + d) * 2 + 1] = end_of(box, d);
    }
  }
}

void OverlapIndex::bound(size_t node) {
  for (size_t d = 0; d < dims_; ++d) {
    uint64_t low = ~uint64_t{0}, high = 0;
    for (size_t position = nodes_[node].begin; position < nodes_[node].end; ++position) {
      low = std::min(low, ranges_[(position * dims_ + d) * 2]);
      high = std::max(high, ranges_[(position * dims_ + d) * 2 + 1]);
    }
    bounds_[(node * dims_ + d) * 2] = low;
    bounds_[(node * dims_ + d) * 2 + 1] = high;
  }
}

// Where the boxes' starts spread over the most boxes of their average length.
size_t OverlapIndex::widest_dim(uint32_t begin, uint32_t end, const BoxAt& box_at) const {
  size_t widest = 0;
  double steps_max = -1;
  for (size_t d = 0; d < dims_; ++d) {
    uint64_t low = ~uint64_t{0}, high = 0;
    double length = 0;
    for (uint32_t position = begin; position < end; ++position) {
      const Box& box = box_at(order_[position]);
      low = std::min(low, box.offsets[d]);
      high = std::max(high, box.offsets[d]);
      length += static_cast<double>(box.sizes[d]);
    }
    const double steps = static_cast<double>(high - low) * (end - begin) / length;
    if (steps > steps_max) widest = d, steps_max = steps;
  }
  return widest;
}

bool OverlapIndex::meets(const uint64_t* range, const Box& query) const {
  for (size_t d = 0; d < dims_; ++d) {
    if (range[2 * d] >= end_of(query, d) || range[2 * d + 1] <= query.offsets[d]) return false;
  }
  return true;
}

Overlap OverlapIndex::overlap_at(uint32_t position, const Box& query) const {
  Overlap overlap{order_[position], {Extents(dims_), Extents(dims_)}};
  for (size_t d = 0; d < dims_; ++d) {
    const uint64_t* range = &ranges_[(size_t{position} * dims_ + d) * 2];
    overlap.part.offsets[d] = std::max(range[0], query.offsets[d]);
    overlap.part.sizes[d] = std::min(range[1], end_of(query, d)) - overlap.part.offsets[d];
  }
  return overlap;
}

std::vector<Overlap> OverlapIndex::find(const Box& query) const {
  std::vector<Overlap> overlaps;
  const bool same_dims = query.offsets.size() == dims_ && query.sizes.size() == dims_;
  if (nodes_.empty() || !same_dims || !has_elements(query)) return overlaps;
  std::vector<uint32_t> open{0};
  while (!open.empty()) {
    const uint32_t index = open.back();
    open.pop_back();
    const Node& node = nodes_[index];
    if (!meets(bounds_.data() + size_t{index} * 2 * dims_, query)) continue;
    if (node.right != 0) {
      open.insert(open.end(), {node.right, index + 1});
      continue;
    }
    for (uint32_t position = node.begin; position < node.end; ++position) {
      if (!meets(ranges_.data() + size_t{position} * 2 * dims_, query)) continue;
      overlaps.push_back(overlap_at(position, query));
    }
  }
  std::ranges::sort(overlaps, {}, &Overlap::box);
  return overlaps;
}

}  // namespace ckpt
