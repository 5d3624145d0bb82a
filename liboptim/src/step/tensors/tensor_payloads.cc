#include "step/tensors/tensor_payloads.h"

#include <optim/checkpoint_bridge.h>
#include <algorithm>
#include <utility>

namespace optim {

ckpt::StorageRegion TensorPayloads::add(const at::Tensor& tensor, std::string name) {
  const auto file = static_cast<uint32_t>(tensors_.size());
  tensors_.push_back(tensor.cpu().contiguous());  // from a GPU: a copy; read_bytes() is of the host
  names_.push_back(std::move(name));
  return {.file = file, .bytes = {0, static_cast<uint64_t>(tensors_.back().nbytes())}};
}

void TensorPayloads::read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                                std::span<std::byte> out) const {
  const auto* const bytes = static_cast<const std::byte*>(tensors_[located.file].const_data_ptr());
  std::copy_n(bytes + located.bytes.offset_bytes + offset_bytes, out.size(), out.data());
}

ckpt::TensorEntry payload_entry(TensorPayloads& payloads, const std::string& key,
                                const at::Tensor& tensor) {
  ckpt::TensorEntry entry;
  entry.key = key;
  entry.dtype = dtype_of(tensor.scalar_type());
  entry.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  ckpt::Chunk chunk;
  chunk.box = ckpt::whole(entry.shape);
  chunk.region = payloads.add(tensor, key);
  entry.chunks.push_back(std::move(chunk));
  return entry;
}

}  // namespace optim
