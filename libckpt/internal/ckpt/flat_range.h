#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ckpt/box.h>

namespace ckpt {

// The elements [first, first + count) of `box` in row-major order, as boxes in that order. Each of
// them is contiguous in the row-major layout of `box`; there are at most 2 * dims - 1.
// The range must lie inside the box.
std::vector<Box> boxes_of_flat_range(const Box& box, uint64_t first, uint64_t count);

// The reverse: where in the row-major order of `box` the elements of `part` start, a box inside of
// it; nullopt where they do not follow each other there.
std::optional<uint64_t> first_of_run(const Box& box, const Box& part);

}  // namespace ckpt
