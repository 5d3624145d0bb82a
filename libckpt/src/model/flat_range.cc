#include <ckpt/flat_range.h>

#include <algorithm>

namespace ckpt {

namespace {

// The longest run of whole slices that starts at `index` (row-major position `first`): the
// outermost dimension whose inner indices are all 0 and of which one slice is wanted at least.
size_t outermost_whole_dim(const Extents& strides, uint64_t first, uint64_t count) {
  size_t d = 0;
  while (first % strides[d] != 0 || strides[d] > count) ++d;  // ends: the last stride is 1
  return d;
}

}  // namespace

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
