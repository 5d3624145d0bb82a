#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ckpt/export.h>
#include <ckpt/file_state.h>

namespace ckpt {

// Bytes that can be read at any place. Safe to read from many threads.
class CKPT_EXPORT RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual uint64_t size_bytes() const = 0;
  // Fills `out` from `offset_bytes`. Throws Error(Corrupt) where the bytes end early,
  // Error(IoFailure) where the system fails.
  virtual void read_at(uint64_t offset_bytes, std::span<std::byte> out) const = 0;
  virtual const std::string& file_name() const = 0;  // for errors
};

// A file of a Folder.
class CKPT_EXPORT OpenedFile : public RandomAccess {
 public:
  virtual const FileState& state() const = 0;  // when it was opened
  // As read_at(), for who passes over the bytes once: they need not be kept for the next reader.
  virtual void read_once(uint64_t offset_bytes, std::span<std::byte> out) const {
    read_at(offset_bytes, out);
  }
};

}  // namespace ckpt
