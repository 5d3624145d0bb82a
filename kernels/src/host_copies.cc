// Copies between the GPU and the host beside a step, in streams of their own or in the caller's.
#include <kernels/device_step.h>

#include <vector>

#include "call_status.h"
#include "graph.h"

namespace kernels {
namespace {

class CudaCopies final : public HostCopies {
 public:
  explicit CudaCopies(bool overlaps) : overlaps_(overlaps) {}
  CudaCopies(const CudaCopies&) = delete;
  CudaCopies& operator=(const CudaCopies&) = delete;
  ~CudaCopies() override {
    for (const Event* const last : {&last_down_, &last_up_}) {
      if (last->is_recorded()) (void)last->wait();
    }
  }

  cudaError_t prepare() {
    if (!overlaps_) return cudaSuccess;
    return Status().then([&] { return down_.make(); }).then([&] { return up_.make(); }).get();
  }

  DeviceStatus follow(DeviceStream stream) override {
    caller_ = static_cast<cudaStream_t>(stream);
    if (!overlaps_) return cudaSuccess;
    return Status()
        .then([&] { return followed_.record(caller_); })
        .then([&] { return followed_.hold(down_.get()); })
        .then([&] { return followed_.hold(up_.get()); })
        .get();
  }

  DeviceStatus to_host(void* host, const void* device, uint64_t bytes) override {
    return copy({host, device, bytes, cudaMemcpyDeviceToHost}, down_, last_down_);
  }

  DeviceStatus mark(uint32_t number) override {
    while (marks_.size() <= number) marks_.push_back(std::make_unique<Event>());
    return marks_[number]->record(stream_of(down_));
  }

  DeviceStatus wait(uint32_t number) override {
    if (number >= marks_.size() || !marks_[number]->is_recorded()) return cudaErrorInvalidValue;
    return marks_[number]->wait();
  }

  DeviceStatus to_device(void* device, const void* host, uint64_t bytes) override {
    return copy({device, host, bytes, cudaMemcpyHostToDevice}, up_, last_up_);
  }

  DeviceStatus join(DeviceStream stream) override {
    if (!overlaps_ || !last_up_.is_recorded()) return cudaSuccess;
    return last_up_.hold(static_cast<cudaStream_t>(stream));
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    uint64_t bytes;
    cudaMemcpyKind kind;
  };
  cudaError_t copy(const Copy& copy, const Stream& own, Event& last) {
    const cudaStream_t stream = stream_of(own);
    return Status()
        .then([&] { return cudaMemcpyAsync(copy.to, copy.from, copy.bytes, copy.kind, stream); })
        .then([&] { return last.record(stream); })
        .get();
  }
  cudaStream_t stream_of(const Stream& own) const { return overlaps_ ? own.get() : caller_; }

  const bool overlaps_;
  cudaStream_t caller_ = nullptr;
  Stream down_, up_;
  Event followed_, last_down_, last_up_;
  std::vector<std::unique_ptr<Event>> marks_;
};

}  // namespace

std::unique_ptr<HostCopies> make_host_copies(bool overlaps, DeviceStatus& status) {
  auto copies = std::make_unique<CudaCopies>(overlaps);
  status = copies->prepare();
  if (status != cudaSuccess) return nullptr;
  return copies;
}

DeviceStatus pin_host(void* memory, uint64_t bytes) {
  return reported(cudaHostRegister(memory, bytes, cudaHostRegisterDefault));
}

DeviceStatus unpin_host(void* memory) { return reported(cudaHostUnregister(memory)); }

}  // namespace kernels
