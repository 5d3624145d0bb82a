#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckpt {

// One dimension of a copy between two layouts. Strides are in elements.
struct StridedDim {
  uint64_t size = 0;
  uint64_t source_stride = 0;
  uint64_t target_stride = 0;
};

// The same copy with as few dimensions as possible, in the order of the source's memory: dimensions
// of one element are dropped, and neighbours that both sides store as one run are joined.
std::vector<StridedDim> joined(std::vector<StridedDim> dims);

// Elements from the first to the last that a copy touches in its source, both included.
uint64_t source_span(std::span<const StridedDim> dims);

// Moves every element. Both pointers stand at the element of index 0.
struct StridedEnds {
  const std::byte* source;
  std::byte* target;
};
void copy_strided(std::span<const StridedDim> dims, uint64_t element_bytes, StridedEnds at);

// Counts through all indices of some dimensions, row-major, keeping the place on both sides.
class StridedWalk {
 public:
  explicit StridedWalk(std::span<const StridedDim> dims) : dims_(dims), index_(dims.size(), 0) {}

  uint64_t source_offset() const { return source_offset_; }  // elements
  uint64_t target_offset() const { return target_offset_; }
  bool next();  // false after the last index

 private:
  std::span<const StridedDim> dims_;
  std::vector<uint64_t> index_;
  uint64_t source_offset_ = 0;
  uint64_t target_offset_ = 0;
};

}  // namespace ckpt
