#pragma once

#include <ATen/core/Tensor.h>

#include <ckpt/checkpoint.h>
#include <cstdint>

#include <optim/export.h>

namespace optim {

// Reads a tensor to `device`, so many bytes at a time, through two page-locked buffers: one is
// read into while the other travels. Host memory beside them is not needed. A tensor without
// dimensions, and rows longer than a buffer, take a buffer of their own size. Throws what
// Checkpoint::read throws. The CPU works, too, for tests.
struct SlabOptions {
  at::Device device;
  int64_t slab_bytes = int64_t{16} << 20;
};
OPTIM_EXPORT at::Tensor load_in_slabs(const ckpt::Checkpoint& checkpoint,
                                      const ckpt::TensorEntry& entry, const SlabOptions& options);

}  // namespace optim
