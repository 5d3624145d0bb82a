#pragma once

#include <cstdint>
#include <span>

#include <ckpt/catalog.h>
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

// Whether a tensor is a small storage expanded to more than a gigabyte (torch.Tensor.expand with a
// stride of 0): a file of a kilobyte may ask for hours of reading.
inline bool repeats_much(const ckpt::TensorEntry& tensor) {
  constexpr uint64_t kBytesMax = uint64_t{1} << 30;
  constexpr uint64_t kTimesMax = 16;
  const uint64_t count_bytes = ckpt::count_bytes(tensor);
  if (count_bytes <= kBytesMax) return false;
  uint64_t stored_bytes = 0;
  for (const ckpt::Chunk& chunk : tensor.chunks) stored_bytes += chunk.region.bytes.count_bytes;
  return count_bytes / kTimesMax > stored_bytes;
}

}  // namespace optim
