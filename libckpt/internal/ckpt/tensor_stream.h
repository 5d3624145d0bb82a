#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>

namespace ckpt {

// Reads a tensor from its first to its last byte, row-major and little-endian, whatever chunks it
// is stored in; memory does not grow with the tensor. The source must outlive it. For one thread.
class TensorStream {
 public:
  TensorStream(TensorEntry tensor, const PayloadSource& source);
  TensorStream(TensorStream&&) noexcept;
  ~TensorStream();

  uint64_t left_bytes() const;
  // The next out.size() bytes: whole elements, at most left_bytes(). Throws Corrupt as
  // Checkpoint::read.
  void read(std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// True when both tensors hold the same bytes. Streams both, stops at the first difference.
bool same_bytes(const TensorEntry& a, const PayloadSource& source_a, const TensorEntry& b,
                const PayloadSource& source_b);

}  // namespace ckpt
