#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

namespace kernels {

// Places in one piece of device memory, each at a multiple of 256 bytes. Before bind() it only
// counts.
class DeviceMemory {
 public:
  using Place = uint64_t;

  Place reserve(uint64_t bytes) {
    const Place place = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return place;
  }
  template <class T>
  Place reserve_for(const std::vector<T>& values) {
    return reserve(values.size() * sizeof(T));
  }
  uint64_t bytes() const { return bytes_; }
  void bind(void* memory) { memory_ = static_cast<char*>(memory); }

  template <class T>
  T* at(Place place) const {
    return reinterpret_cast<T*>(memory_ + place);
  }
  template <class T>
  cudaError_t upload(Place place, const std::vector<T>& values, cudaStream_t stream) const {
    if (values.empty()) return cudaSuccess;
    return cudaMemcpyAsync(at<T>(place), values.data(), values.size() * sizeof(T),
                           cudaMemcpyHostToDevice, stream);
  }

 private:
  uint64_t bytes_ = 0;
  char* memory_ = nullptr;
};

}  // namespace kernels
