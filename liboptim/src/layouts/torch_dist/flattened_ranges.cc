// Ranges of flattened fragments, as boxes of the tensor that the fragments make.
#include "layouts/torch_dist/flattened_ranges.h"

#include <algorithm>

#include <ckpt/flat_range.h>

#include "layouts/torch_dist/store_errors.h"

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Extents;
using ckpt::TensorEntry;

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

TensorEntry unflatten(const TensorEntry& stored, const Extents& shape) {
  const Extents fragment = fragment_of(stored, shape);
  TensorEntry tensor{stored.file, stored.key, stored.dtype, shape, {}};
  for (const ckpt::Chunk& chunk : stored.chunks) {
    if (!is_range(chunk)) {
      store_errors::corrupt(stored.key, "holds a chunk that is not a range of one fragment");
    }
    Box whole{Extents(shape.size()), fragment};
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      whole.offsets[axis] = chunk.box.offsets[axis] * fragment[axis];
    }
    ckpt::Chunk part = chunk;
    for (Box& box :
         ckpt::boxes_of_flat_range(whole, chunk.box.offsets.back(), chunk.box.sizes.back())) {
      const uint64_t elements = ckpt::element_count(box.sizes);
      part.box = std::move(box);
      tensor.chunks.push_back(part);
      part.payload_offset_bytes += elements * ckpt::bytes_per_element(stored.dtype);
    }
  }
  return tensor;
}

}  // namespace optim
