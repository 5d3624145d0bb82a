#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/payload_source.h>

#include "state/read_range.h"

namespace optim {

// Tensors that lie in no file, each behind the files of a checkpoint as one of its own.
class ComputedTensors {
 public:
  using Fill = decltype(ckpt::ComputedTensor::fill);

  // `source` must outlive what is made of it.
  explicit ComputedTensors(const ckpt::Checkpoint& source)
      : source_(source), first_file_(static_cast<uint32_t>(source.catalog().files.size())) {}

  ckpt::TensorEntry add(std::string key, ckpt::DType type, ckpt::Extents shape, Fill fill) {
    ckpt::TensorEntry entry{
        .file = {}, .key = std::move(key), .dtype = type, .shape = std::move(shape), .chunks = {}};
    const auto file = first_file_ + static_cast<uint32_t>(tensors_.size());
    if (ckpt::count_bytes(entry) != 0) entry.chunks = {ckpt::chunk_of_computed(entry, file)};
    tensors_.push_back({ckpt::bytes_per_element(type), std::move(fill)});
    return entry;
  }

  // Of the checkpoint's files and all that was added.
  std::shared_ptr<const ckpt::PayloadSource> payloads() {
    return ckpt::with_computed(source_, first_file_, std::move(tensors_), source_.shown_path());
  }

 private:
  const ckpt::Checkpoint& source_;
  uint32_t first_file_;
  std::vector<ckpt::ComputedTensor> tensors_;
};

// All elements of a tensor, which are in another order than they are stored, or of another type.
inline ComputedTensors::Fill elements_of(const ckpt::Checkpoint& source,
                                         std::shared_ptr<const ckpt::TensorEntry> tensor) {
  return [&source, tensor = std::move(tensor)](uint64_t first, std::span<std::byte> out) {
    read_range(source, *tensor, first, out);
  };
}

}  // namespace optim
