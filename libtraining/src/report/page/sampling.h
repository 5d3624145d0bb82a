#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/checkpoint.h>
#include <training/training_state.h>

namespace optim {

// Boxes of a tensor, in order and without overlap, each a run of its row-major elements: all of it,
// or runs that are spread evenly, of `element_count_max` elements together.
std::vector<ckpt::Box> spread_boxes(const ckpt::Extents& shape, uint64_t element_count_max);

// How many bytes of each tensor may be read, so that it is `bytes_max` of all: the same of each,
// but not more than it has.
std::vector<uint64_t> shared_out(std::span<const TensorRef> tensors, uint64_t bytes_max);

}  // namespace optim
