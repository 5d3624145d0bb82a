#pragma once

#include <span>
#include <vector>

#include <ckpt/catalog.h>

namespace optim {

// The elements of boxes of a tensor, in row-major order one box behind the other, as chunks of a
// tensor of one dimension. Reads nothing. Elements that lie in no chunk of the tensor lie in none
// of these. Throws Unsupported where they are in more than 2^22 pieces.
std::vector<ckpt::Chunk> flat_chunks(const ckpt::TensorEntry& tensor,
                                     std::span<const ckpt::Box> boxes);

}  // namespace optim
