// Ranges of a flat buffer become boxes of parameters.
#include "layouts/parts/flat_tensor.h"

#include <algorithm>

#include <ckpt/error.h>
#include <ckpt/flat_range.h>

namespace optim {
namespace {

using ckpt::Chunk;
using ckpt::TensorEntry;

[[noreturn]] void corrupt(const TensorEntry& tensor, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {tensor.file, std::nullopt, tensor.key},
                    std::move(problem));
}

uint64_t begin_of(const Chunk* chunk) { return chunk->box.offsets[0]; }
uint64_t end_of(const Chunk* chunk) { return chunk->box.offsets[0] + chunk->box.sizes[0]; }

// The elements of a chunk from its `first` on, as a row-major box of a parameter.
Chunk as_box(const Chunk& flat, uint64_t first, ckpt::Box box, ckpt::DType dtype) {
  Chunk chunk = flat;
  const uint64_t stride = flat.view ? flat.view->strides[0] : 1;
  const uint64_t begin = (flat.view ? flat.view->offset : 0) + first * stride;
  if (stride == 1) {
    chunk.view = nullptr;
    chunk.payload_offset_bytes += begin * ckpt::bytes_per_element(dtype);
  } else {
    ckpt::StridedView view{begin, ckpt::row_major_strides(box.sizes)};
    for (uint64_t& each : view.strides) each *= stride;
    chunk.view = std::make_shared<const ckpt::StridedView>(std::move(view));
  }
  chunk.box = std::move(box);
  return chunk;
}

}  // namespace

FlatTensor::FlatTensor(const TensorEntry& tensor) : tensor_(&tensor) {
  if (tensor.shape.size() != 1) {
    corrupt(tensor, "has " + std::to_string(tensor.shape.size()) +
                        " dimensions, but a flat buffer has one");
  }
  for (const Chunk& chunk : tensor.chunks) chunks_.push_back(&chunk);
  if (!std::ranges::is_sorted(chunks_, {}, begin_of)) std::ranges::sort(chunks_, {}, begin_of);
}

TensorEntry FlatTensor::slice(uint64_t begin, const ckpt::Extents& shape) const {
  return {tensor_->file, tensor_->key, tensor_->dtype, shape, chunks_of(begin, shape)};
}

std::vector<Chunk> FlatTensor::chunks_of(uint64_t begin, const ckpt::Extents& shape) const {
  const uint64_t count = ckpt::element_count(shape);
  if (begin > element_count() || count > element_count() - begin) {
    corrupt(*tensor_, "has " + std::to_string(element_count()) + " elements, but a parameter of " +
                          std::to_string(count) + " starts at " + std::to_string(begin));
  }
  std::vector<Chunk> chunks;
  const ckpt::Box whole = ckpt::whole(shape);
  uint64_t next = begin;  // the first element that has no place yet
  auto at = std::ranges::upper_bound(chunks_, begin, {}, begin_of);
  if (at != chunks_.begin()) --at;
  for (; at != chunks_.end() && next < begin + count && begin_of(*at) <= next; ++at) {
    const uint64_t end = std::min(end_of(*at), begin + count);
    if (end <= next) continue;
    uint64_t first = next - begin_of(*at);
    if (end - next == count) {  // nearly always
      chunks.push_back(as_box(**at, first, whole, tensor_->dtype));
      return chunks;
    }
    for (ckpt::Box& box : ckpt::boxes_of_flat_range(whole, next - begin, end - next)) {
      const uint64_t elements = ckpt::element_count(box.sizes);
      chunks.push_back(as_box(**at, first, std::move(box), tensor_->dtype));
      first += elements;
    }
    next = end;
  }
  if (next != begin + count) {
    corrupt(*tensor_, "its element " + std::to_string(next) + " is in no chunk");
  }
  return chunks;
}

}  // namespace optim
