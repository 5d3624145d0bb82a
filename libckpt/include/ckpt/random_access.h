#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ckpt/export.h>

namespace ckpt {

// What tells one state of a file from another, the same on every machine that sees it.
struct FileState {
  uint64_t inode = 0;
  uint64_t count_bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  bool operator==(const FileState&) const = default;
};

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
