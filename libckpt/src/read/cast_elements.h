#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/catalog.h>

#include "read/strided_copy.h"

namespace ckpt {

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
