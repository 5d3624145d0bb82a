// Ranges of flattened fragments, as boxes of the tensor that the fragments make.
#include "layouts/filings/flattened_ranges.h"

#include <utility>
#include <vector>

#include <ckpt/flat_range.h>
#include <training/filing.h>

#include "layouts/parts/store_errors.h"
#include "state/words.h"

namespace optim {
namespace {

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

// Megatron's chunks are of one fragment; what PyTorch saves again may have those of all layers.
constexpr uint64_t kFragmentsMax = uint64_t{1} << 16;

// The fragments that a chunk has parts of, in the order of its payload.
std::vector<Extents> fragments_of(const Chunk& chunk, const TensorEntry& stored) {
  const Extents sizes(chunk.box.sizes.begin(), chunk.box.sizes.end() - 1);
  if (chunk.view || ckpt::element_count(sizes) > kFragmentsMax) {
    store_errors::corrupt(stored.key, "holds a chunk that is not a range of its fragments");
  }
  std::vector<Extents> fragments;
  const Extents strides = ckpt::row_major_strides(sizes);
  for (uint64_t i = 0; i < ckpt::element_count(sizes); ++i) {
    Extents place;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      place.push_back(chunk.box.offsets[axis] + i / strides[axis] % sizes[axis]);
    }
    fragments.push_back(std::move(place));
  }
  return fragments;
}

}  // namespace

TensorEntry unflatten(const TensorEntry& stored, const Extents& shape) {
  const Extents fragment = fragment_of(stored, shape);
  TensorEntry tensor{stored.file, stored.key, stored.dtype, shape, {}};
  for (const Chunk& chunk : stored.chunks) {
    Chunk part = chunk;
    for (const Extents& place : fragments_of(chunk, stored)) {
      Box whole{Extents(shape.size()), fragment};
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        whole.offsets[axis] = place[axis] * fragment[axis];
      }
      for (Box& box :
           ckpt::boxes_of_flat_range(whole, chunk.box.offsets.back(), chunk.box.sizes.back())) {
        const uint64_t elements = ckpt::element_count(box.sizes);
        part.box = std::move(box);
        tensor.chunks.push_back(part);
        part.payload_offset_bytes += elements * ckpt::bytes_per_element(stored.dtype);
      }
    }
  }
  return tensor;
}

void flatten(const Extents& fragment, ckpt::DistTensor& tensor) {
  const Extents whole = tensor.unflattened.empty() ? tensor.shape : tensor.unflattened;
  Extents grid;
  bool is_grid = whole.size() == fragment.size();
  for (size_t axis = 0; is_grid && axis < whole.size(); ++axis) {
    is_grid = fragment[axis] > 0 && whole[axis] % fragment[axis] == 0;
    if (is_grid) grid.push_back(whole[axis] / fragment[axis]);
  }
  grid.push_back(ckpt::element_count(fragment));
  const bool is_same = tensor.unflattened.empty() || tensor.shape == grid;
  if (!is_grid || !is_same) {
    store_errors::unsupported(tensor.key,
                              "ranks have parts of several sizes of it, which " +
                                  std::string(kRanges.name) + " does not file",
                              "--optimizer-sharding fully_reshardable");
  }
  tensor.unflattened = whole;
  tensor.shape = std::move(grid);
}

Box flat_range(const Box& rows, const Extents& fragment) {
  const Extents strides = ckpt::row_major_strides(fragment);
  Box range;
  uint64_t begin = 0;
  for (size_t axis = 0; axis < fragment.size(); ++axis) {
    range.offsets.push_back(rows.offsets[axis] / fragment[axis]);
    range.sizes.push_back(1);
    begin += rows.offsets[axis] % fragment[axis] * strides[axis];
  }
  range.offsets.push_back(begin);
  range.sizes.push_back(ckpt::element_count(rows.sizes));
  return range;
}

constexpr Filing kRanges = {.name = "fully_sharded_model_space",
                            .container = ckpt::Format::TorchDist,
                            .by_elements = true,
                            .is_written = false,
                            .as_param = unflatten};

}  // namespace optim
