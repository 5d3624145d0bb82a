// A box of a chunk becomes as many pieces as it has runs of elements.
#include "repair/flat_chunks.h"

#include <ckpt/error.h>

#include "layouts/parts/tensor_parts.h"

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Chunk;

constexpr size_t kPiecesMax = size_t{1} << 22;

// The first dimension from which on a part of both is a run of elements in both of them.
size_t first_dim_of_run(const Box& part, const Box& outer, const Chunk& chunk) {
  const size_t dims = part.sizes.size();
  size_t dim = dims == 0 ? 0 : dims - 1;
  while (dim > 0 && !chunk.view && part.sizes[dim] == outer.sizes[dim] &&
         part.sizes[dim] == chunk.box.sizes[dim]) {
    --dim;
  }
  return dim;
}

// Where a run starts among the elements of `outer`.
uint64_t place_in(const Box& outer, const Box& run) {
  const ckpt::Extents strides = ckpt::row_major_strides(outer.sizes);
  uint64_t place = 0;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    place += (run.offsets[dim] - outer.offsets[dim]) * strides[dim];
  }
  return place;
}

Chunk flattened(Chunk run, uint64_t begin) {
  if (run.view) {
    const auto& strides = run.view->strides;
    run.view = std::make_shared<const ckpt::StridedView>(
        ckpt::StridedView{run.view->offset, {strides.empty() ? 1 : strides.back()}});
  }
  run.box = {{begin}, {ckpt::element_count(run.box.sizes)}};
  return run;
}

class Flattening {
 public:
  explicit Flattening(const ckpt::TensorEntry& tensor) : tensor_(tensor) {}

  std::vector<Chunk> run(std::span<const Box> boxes) {
    for (const Box& box : boxes) {
      for (const Chunk& chunk : tensor_.chunks) {
        if (const auto part = ckpt::intersect(chunk.box, box)) add(*part, box, chunk);
      }
      begin_ += ckpt::element_count(box.sizes);
    }
    return std::move(pieces_);
  }

 private:
  void add(const Box& part, const Box& outer, const Chunk& chunk) {
    const size_t dim = first_dim_of_run(part, outer, chunk);
    Box run = part;
    uint64_t count = 1;
    for (size_t i = 0; i < dim; ++i) {
      count *= part.sizes[i];
      run.sizes[i] = 1;
    }
    if (count > kPiecesMax - pieces_.size()) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = tensor_.key},
                        "is stored in too many pieces to be moved in its buffer");
    }
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t rest = i;
      for (size_t d = dim; d-- > 0; rest /= part.sizes[d]) {
        run.offsets[d] = part.offsets[d] + rest % part.sizes[d];
      }
      pieces_.push_back(
          flattened(part_of(chunk, run, tensor_.dtype), begin_ + place_in(outer, run)));
    }
  }

  const ckpt::TensorEntry& tensor_;
  uint64_t begin_ = 0;  // of the box
  std::vector<Chunk> pieces_;
};

}  // namespace

std::vector<Chunk> flat_chunks(const ckpt::TensorEntry& tensor, std::span<const Box> boxes) {
  return Flattening(tensor).run(boxes);
}

}  // namespace optim
