#pragma once

#include <cstdint>
#include <span>

#include <ckpt/checkpoint.h>
#include <ckpt/flat_range.h>

namespace optim {

// Elements of a tensor in row-major order, from `first` on, into a buffer of whole elements.
inline void read_range(const ckpt::Checkpoint& source, const ckpt::TensorEntry& tensor,
                       uint64_t first, std::span<std::byte> out) {
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  for (const ckpt::Box& box :
       ckpt::boxes_of_flat_range(ckpt::whole(tensor.shape), first, out.size() / element_bytes)) {
    const uint64_t count_bytes = ckpt::element_count(box.sizes) * element_bytes;
    source.read(tensor, box, out.first(count_bytes));
    out = out.subspan(count_bytes);
  }
}

}  // namespace optim
