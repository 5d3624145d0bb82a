#pragma once

#include <ckpt/catalog.h>

namespace optim {

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
