#pragma once

#include <ckpt/catalog.h>

// Optimizer state as Megatron-Core up to 0.14 files it in torch_dist (fully_sharded_model_space):
// a tensor is cut into a grid of equal fragments, each of them is flattened, and ranks store ranges
// of them. Its stored shape is the grid's and, last, the elements of a fragment.
namespace optim {

// The same state as a tensor of `shape`, in the same bytes. Throws Corrupt where the stored shape
// is no grid of fragments of it, or a chunk has parts of too many.
ckpt::TensorEntry unflatten(const ckpt::TensorEntry& stored, const ckpt::Extents& shape);

}  // namespace optim
