#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace optim {

// Copies memory of one device: at once on the CPU, behind what is queued on a GPU.
inline void copy_bytes(std::byte* to, const std::byte* from, int64_t count,
                       const at::Device& device) {
  if (device.is_cpu()) {
    std::memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  const auto options = at::TensorOptions(at::kByte).device(device);
  at::from_blob(to, {count}, options)
      .copy_(at::from_blob(const_cast<std::byte*>(from), {count}, options));
}

}  // namespace optim
