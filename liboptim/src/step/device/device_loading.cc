#include "step/device/device_loading.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include <optim/checkpoint_bridge.h>

namespace optim {
namespace {

// A host buffer, and what tells that the device has read it.
class Buffer {
 public:
  Buffer(int64_t bytes, const at::Device& device) : device_(device) {
    const auto options = at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu());
    memory_ = at::empty({bytes}, options);
  }

  std::span<std::byte> wait(int64_t bytes) {
    if (sent_) sent_->synchronize();
    return {static_cast<std::byte*>(memory_.mutable_data_ptr()), static_cast<size_t>(bytes)};
  }

  void send(int64_t bytes, at::Tensor target) {
    const at::Tensor view =
        memory_.narrow(0, 0, bytes).view(target.scalar_type()).view(target.sizes());
    target.copy_(view, /*non_blocking=*/true);
    if (device_.is_cpu()) return;
    if (!sent_) sent_.emplace(device_.type());
    sent_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

 private:
  at::Device device_;
  at::Tensor memory_;
  std::optional<c10::Event> sent_;
};

ckpt::Box rows_of(const ckpt::TensorEntry& entry, int64_t first, int64_t count) {
  ckpt::Box box = ckpt::whole(entry.shape);
  box.offsets[0] = static_cast<uint64_t>(first);
  box.sizes[0] = static_cast<uint64_t>(count);
  return box;
}

}  // namespace

at::Tensor load_in_slabs(const ckpt::Checkpoint& checkpoint, const ckpt::TensorEntry& entry,
                         const SlabOptions& options) {
  const std::vector<int64_t> shape(entry.shape.begin(), entry.shape.end());
  at::Tensor tensor =
      at::empty(shape, at::TensorOptions(scalar_type(entry.dtype)).device(options.device));
  if (shape.empty()) return tensor.copy_(load_tensor(checkpoint, entry));
  if (tensor.numel() == 0) return tensor;
  const auto row_bytes = static_cast<int64_t>(tensor.nbytes()) / shape[0];
  const int64_t rows_each = std::clamp<int64_t>(options.slab_bytes / row_bytes, 1, shape[0]);
  std::array<Buffer, 2> buffers = {Buffer(rows_each * row_bytes, options.device),
                                   Buffer(rows_each * row_bytes, options.device)};
  size_t turn = 0;
  for (int64_t first = 0; first < shape[0]; first += rows_each) {
    const int64_t count = std::min(rows_each, shape[0] - first);
    Buffer& buffer = buffers[turn++ % 2];
    checkpoint.read(entry, rows_of(entry, first, count), buffer.wait(count * row_bytes));
    buffer.send(count * row_bytes, tensor.narrow(0, first, count));
  }
  for (Buffer& buffer : buffers) buffer.wait(0);  // before they are freed
  return tensor;
}

}  // namespace optim
