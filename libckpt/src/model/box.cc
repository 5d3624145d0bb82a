#include <ckpt/box.h>

#include <algorithm>
#include <limits>

#include <ckpt/error.h>
#include <ckpt/flat_range.h>

#include "base/checked_math.h"

namespace ckpt {
namespace {

constexpr uint64_t kElementsMax = std::numeric_limits<int64_t>::max();

uint64_t end_of(uint64_t offset, uint64_t size) {
  return checked_add(offset, size).value_or(std::numeric_limits<uint64_t>::max());
}

uint64_t product(uint64_t a, uint64_t b) {
  const auto result = checked_mul(a, b);
  if (!result || *result > kElementsMax) {
    throw Error(ErrorCode::Corrupt, {}, "the tensor has more than 2^63 - 1 elements");
  }
  return *result;
}

// The longest run of whole slices that starts at `index` (row-major position `first`): the
// outermost dimension whose inner indices are all 0 and of which one slice is wanted at least.
size_t outermost_whole_dim(const Extents& strides, uint64_t first, uint64_t count) {
  size_t d = 0;
  while (first % strides[d] != 0 || strides[d] > count) ++d;  // ends: the last stride is 1
  return d;
}

}  // namespace

Box whole(const Extents& shape) { return {Extents(shape.size(), 0), shape}; }

std::optional<Box> intersect(const Box& a, const Box& b) {
  const size_t dims = a.sizes.size();
  if (a.offsets.size() != dims || b.offsets.size() != dims || b.sizes.size() != dims) {
    return std::nullopt;
  }
  Box both{Extents(dims), Extents(dims)};
  for (size_t d = 0; d < dims; ++d) {
    const uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const uint64_t end =
        std::min(end_of(a.offsets[d], a.sizes[d]), end_of(b.offsets[d], b.sizes[d]));
    if (begin >= end) return std::nullopt;
    both.offsets[d] = begin;
    both.sizes[d] = end - begin;
  }
  return both;
}

uint64_t element_count(const Extents& sizes) {
  if (std::ranges::find(sizes, uint64_t{0}) != sizes.end()) return 0;
  uint64_t count = 1;
  for (const uint64_t size : sizes) count = product(count, size);
  return count;
}

// As torch does it, a dimension of size 0 counts as one of size 1.
Extents row_major_strides(const Extents& sizes) {
  Extents strides(sizes.size());
  uint64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    if (d > 0) stride = product(stride, std::max<uint64_t>(sizes[d], 1));
  }
  return strides;
}

std::vector<Box> boxes_of_flat_range(const Box& box, uint64_t first, uint64_t count) {
  std::vector<Box> boxes;
  if (count == 0) return boxes;
  const size_t dims = box.sizes.size();
  if (dims == 0) return {box};
  const Extents strides = row_major_strides(box.sizes);
  while (count > 0) {
    const size_t d = outermost_whole_dim(strides, first, count);
    Box part{box.offsets, box.sizes};
    for (size_t i = 0; i <= d; ++i) {
      part.offsets[i] += first / strides[i] % box.sizes[i];
      part.sizes[i] = 1;
    }
    const uint64_t index = part.offsets[d] - box.offsets[d];
    part.sizes[d] = std::min(count / strides[d], box.sizes[d] - index);
    first += part.sizes[d] * strides[d];
    count -= part.sizes[d] * strides[d];
    boxes.push_back(std::move(part));
  }
  return boxes;
}

// One index of leading dimensions, a range of the next, all of those behind.
std::optional<uint64_t> first_of_run(const Box& box, const Box& part) {
  const Extents strides = row_major_strides(box.sizes);
  uint64_t first = 0;
  bool must_be_whole = false;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    if (must_be_whole && part.sizes[d] != box.sizes[d]) return std::nullopt;
    must_be_whole = must_be_whole || part.sizes[d] != 1;
    first += (part.offsets[d] - box.offsets[d]) * strides[d];
  }
  return first;
}

}  // namespace ckpt
