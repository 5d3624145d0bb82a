// Ranges of flattened fragments, as boxes of the tensor that the fragments make.
#include "layouts/torch_dist/flattened_ranges.h"

#include <algorithm>

#include "layouts/torch_dist/store_errors.h"

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Extents;
using ckpt::TensorEntry;

// Where element `position` of a row-major tensor is.
Extents place_of(uint64_t position, const Extents& strides) {
  Extents place;
  for (const uint64_t stride : strides) {
    place.push_back(position / stride);
    position %= stride;
  }
  return place;
}

// The shape of one fragment.
Extents fragment_of(const TensorEntry& stored, const Extents& shape) {
  const auto refuse = [&] {
    store_errors::corrupt(stored.key,
                          "does not hold the fragments of a grid over its parameter's shape");
  };
  if (stored.shape.size() != shape.size() + 1) refuse();
  Extents fragment;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const uint64_t parts = stored.shape[axis];
    if (parts == 0 || shape[axis] % parts != 0) refuse();
    fragment.push_back(shape[axis] / parts);
  }
  if (ckpt::element_count(fragment) != stored.shape.back()) refuse();
  return fragment;
}

// Whether it is a part of one fragment; its bounds were checked with the catalog's.
bool is_range(const ckpt::Chunk& chunk) {
  return !chunk.view && std::all_of(chunk.box.sizes.begin(), chunk.box.sizes.end() - 1,
                                    [](uint64_t size) { return size == 1; });
}

}  // namespace

std::vector<Box> boxes_of_range(const Extents& sizes, uint64_t begin, uint64_t end) {
  const Extents strides = ckpt::row_major_strides(sizes);
  std::vector<Box> boxes;
  while (begin < end) {
    Box box{place_of(begin, strides), Extents(sizes.size(), 1)};
    uint64_t count = 1;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      // The first axis of which whole slices lie in front of the end.
      if (begin % strides[axis] != 0 || end - begin < strides[axis]) continue;
      const uint64_t slices =
          std::min((end - begin) / strides[axis], sizes[axis] - box.offsets[axis]);
      box.sizes[axis] = slices;
      std::copy(sizes.begin() + static_cast<ptrdiff_t>(axis) + 1, sizes.end(),
                box.sizes.begin() + static_cast<ptrdiff_t>(axis) + 1);
      count = slices * strides[axis];
      break;
    }
    boxes.push_back(std::move(box));
    begin += count;
  }
  return boxes;
}

TensorEntry unflatten(const TensorEntry& stored, const Extents& shape) {
  const Extents fragment = fragment_of(stored, shape);
  TensorEntry tensor{stored.file, stored.key, stored.dtype, shape, {}};
  for (const ckpt::Chunk& chunk : stored.chunks) {
    if (!is_range(chunk)) {
      store_errors::corrupt(stored.key, "holds a chunk that is not a range of one fragment");
    }
    const uint64_t begin = chunk.box.offsets.back();
    ckpt::Chunk part = chunk;
    for (Box& box : boxes_of_range(fragment, begin, begin + chunk.box.sizes.back())) {
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        box.offsets[axis] += chunk.box.offsets[axis] * fragment[axis];
      }
      const uint64_t elements = ckpt::element_count(box.sizes);
      part.box = std::move(box);
      tensor.chunks.push_back(part);
      part.payload_offset_bytes += elements * ckpt::bytes_per_element(stored.dtype);
    }
  }
  return tensor;
}

}  // namespace optim
