#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/catalog.h>

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

// A run of a source whose elements go to a target at equal distances: a row that becomes a column.
// Moves them tile by tile, so that a line of memory is not fetched once for each element.
class ColumnWriter {
 public:
  static constexpr size_t kRowsMax = 32;

  // `count` elements of each row, `stride` elements from one to the next in the target.
  ColumnWriter(uint64_t count, uint64_t stride, uint64_t element_bytes)
      : count_(count), stride_(stride), element_bytes_(element_bytes) {}
  // Both stand at the row's first element. The source must stay until flush().
  void add(StridedEnds row) {
    rows_[row_count_++] = row;
    if (row_count_ == kRowsMax) flush();
  }
  void flush();

 private:
  uint64_t count_, stride_, element_bytes_;
  std::array<StridedEnds, kRowsMax> rows_;
  size_t row_count_ = 0;
};

// The dimensions before the last in the order of the target's memory, where the last becomes
// columns; else none.
std::vector<StridedDim> rows_of_columns(std::span<const StridedDim> dims);

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

// Moves the elements of one tensor from storages to readers: as they are, or in another type. For
// one thread.
class ElementMover {
 public:
  explicit ElementMover(const TensorEntry& tensor);  // which must outlive it

  uint64_t stored_bytes() const { return stored_bytes_; }  // of an element
  uint64_t bytes() const { return bytes_; }                // of one for the reader
  bool casts() const { return cast_ != nullptr; }

  // Both ends stand at the element of index 0. Throws Unsupported for a value that the cast
  // refuses.
  void move(std::span<const StridedDim> dims, StridedEnds at);

  // Numbers that became infinite; of what is moved again they are counted once.
  uint64_t overflow_count() const { return overflow_count_; }
  void count_from(uint64_t overflow_count) { overflow_count_ = overflow_count; }

 private:
  void cast_row(const StridedDim& dim, StridedEnds at);
  void cast_columns(const std::vector<StridedDim>& rows, const StridedDim& column, StridedEnds at);

  const TensorEntry& tensor_;
  const Cast* cast_;
  uint64_t stored_bytes_, bytes_;
  uint64_t overflow_count_ = 0;
};

}  // namespace ckpt
