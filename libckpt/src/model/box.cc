#include <ckpt/box.h>
#include <ckpt/error.h>

#include <algorithm>
#include <limits>

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

}  // namespace ckpt
