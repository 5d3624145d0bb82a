#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt {

// Bytes that can be read at any place: a file, or memory in tests. Safe to read from many threads.
class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual uint64_t size_bytes() const = 0;
  // Fills `out` from `offset_bytes`. Throws Error(Corrupt) where the bytes end early,
  // Error(IoFailure) where the system fails.
  virtual void read_at(uint64_t offset_bytes, std::span<std::byte> out) const = 0;
  virtual const std::string& file_name() const = 0;  // for errors
};

}  // namespace ckpt
