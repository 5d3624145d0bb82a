#pragma once

#include <ATen/core/Tensor.h>

#include <kernels/device_step.h>
#include <cstddef>
#include <cstdint>

namespace optim {

// Memory of the host in whole pages, page-locked where that is asked for.
class HostBlock {
 public:
  HostBlock() = default;
  // Throws Error(IoFailure) where the device cannot page-lock it.
  HostBlock(uint64_t bytes, const kernels::DeviceApi* pins_with);
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  ~HostBlock();

  uint64_t bytes() const { return bytes_; }
  std::byte* at(uint64_t offset) const { return begin_ + offset; }

 private:
  at::Tensor memory_;
  std::byte* begin_ = nullptr;
  uint64_t bytes_ = 0;
  const kernels::DeviceApi* pinned_by_ = nullptr;
};

}  // namespace optim
