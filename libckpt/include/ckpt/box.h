#pragma once

#include <cstdint>
#include <optional>

#include <ckpt/export.h>
#include <ckpt/extents.h>

namespace ckpt {

// A rectangular part of a tensor, in elements of the whole tensor's index space.
struct Box {
  Extents offsets;
  Extents sizes;
  bool operator==(const Box&) const = default;
};

CKPT_EXPORT Box whole(const Extents& shape);
CKPT_EXPORT std::optional<Box> intersect(const Box& a,
                                         const Box& b);  // nullopt when they share no element

// Product of all sizes (1 for a 0-dim tensor). Throws Corrupt when it does not fit 63 bits.
CKPT_EXPORT uint64_t element_count(const Extents& sizes);

// Row-major strides, in elements, of a tensor of this shape.
Extents row_major_strides(const Extents& sizes);

}  // namespace ckpt
