#pragma once

#include <memory>

#include <kernels/host_copies.h>

namespace kernels {

// Null and a status where CUDA has no streams to give.
std::unique_ptr<HostCopies> make_host_copies(bool overlaps, DeviceStatus& status);

// Page-locks host memory, which copies at full speed, and undoes it.
DeviceStatus pin_host(void* memory, uint64_t bytes);
DeviceStatus unpin_host(void* memory);

}  // namespace kernels
