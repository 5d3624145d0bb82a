#pragma once

#include <cstdint>
#include <memory>

namespace kernels {

// 0, or a cudaError_t.
using DeviceStatus = int;
// A cudaStream_t; null: the default stream.
using DeviceStream = void*;

// Copies between one GPU and the host, beside a step there: gradients to parameters that the CPU
// updates, and these back. They run in the caller's stream, or, where they are to overlap with what
// that does, in two of their own, one per direction. Everything is queued, but for wait(). Not
// thread-safe.
class HostCopies {
 public:
  virtual ~HostCopies() = default;  // waits for what it has queued
  // Copies from here on find done what `stream` was given so far.
  virtual DeviceStatus follow(DeviceStream stream) = 0;
  virtual DeviceStatus to_host(void* host, const void* device, uint64_t bytes) = 0;
  // A place behind the copies to the host so far, by a number of the caller's.
  virtual DeviceStatus mark(uint32_t number) = 0;
  // The calling thread waits for the copies before it. A number that was not marked is refused.
  virtual DeviceStatus wait(uint32_t number) = 0;
  virtual DeviceStatus to_device(void* device, const void* host, uint64_t bytes) = 0;
  // What `stream` is given from here on finds the copies to the device done.
  virtual DeviceStatus join(DeviceStream stream) = 0;
};

// Null and a status where CUDA has no streams to give.
std::unique_ptr<HostCopies> make_host_copies(bool overlaps, DeviceStatus& status);

// Page-locks whole pages of host memory, which copies at full speed, and undoes it.
DeviceStatus pin_host(void* memory, uint64_t bytes);
DeviceStatus unpin_host(void* memory);

}  // namespace kernels
