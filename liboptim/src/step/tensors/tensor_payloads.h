#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>

namespace optim {

// Tensors in memory as a source of payload: each is a "file" of its own. Tensors must not change
// while they are read.
class TensorPayloads final : public ckpt::PayloadSource {
 public:
  // `name` is printed in errors. The tensor is kept alive; it is copied if it is not contiguous.
  ckpt::StorageRegion add(const at::Tensor& tensor, std::string name);

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override { return {region}; }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override { return names_[file]; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::string> names_;
};

// The whole tensor as one region of `payloads`.
ckpt::TensorEntry payload_entry(TensorPayloads& payloads, const std::string& key,
                                const at::Tensor& tensor);

}  // namespace optim
