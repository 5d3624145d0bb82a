#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/catalog.h>

namespace optim {

// A flat buffer of optimizer state, of which ranges are the tensors of parameters.
class FlatTensor {
 public:
  // `tensor`, of one dimension, must outlive it. Throws Corrupt for another.
  explicit FlatTensor(const ckpt::TensorEntry& tensor);

  const ckpt::TensorEntry& entry() const { return *tensor_; }
  uint64_t element_count() const { return tensor_->shape[0]; }
  // The elements from `begin` on, as a row-major tensor of this shape: each piece of the buffer
  // that is stored is at most 2 * dims - 1 chunks. Reads nothing. Throws Corrupt where elements are
  // beyond the buffer or in none of its chunks.
  ckpt::TensorEntry slice(uint64_t begin, const ckpt::Extents& shape) const;
  // That slice's chunks alone.
  std::vector<ckpt::Chunk> chunks_of(uint64_t begin, const ckpt::Extents& shape) const;

 private:
  const ckpt::TensorEntry* tensor_;
  std::vector<const ckpt::Chunk*> chunks_;  // by where they start
};

}  // namespace optim
