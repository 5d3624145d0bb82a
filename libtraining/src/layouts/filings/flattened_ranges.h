#pragma once

#include <ckpt/catalog.h>
#include <ckpt/torch_dist_target.h>

// Optimizer state as Megatron-Core up to 0.14 files it in torch_dist (fully_sharded_model_space):
// a tensor is cut into a grid of equal fragments, each of them is flattened, and ranks store ranges
// of them. Its stored shape is the grid's and, last, the elements of a fragment.
namespace optim {

// The same state as a tensor of `shape`, in the same bytes. Throws Corrupt where the stored shape
// is no grid of fragments of it, or a chunk has parts of too many.
ckpt::TensorEntry unflatten(const ckpt::TensorEntry& stored, const ckpt::Extents& shape);

// The inverse, of a target: files a tensor as the grid of such fragments, unless it is filed so
// already. Throws Unsupported where they are no grid of it.
void flatten(const ckpt::Extents& fragment, ckpt::DistTensor& tensor);
// Whole rows of a fragment, a box of the tensor, as a range of that fragment.
ckpt::Box flat_range(const ckpt::Box& rows, const ckpt::Extents& fragment);

}  // namespace optim
