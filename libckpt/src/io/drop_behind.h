#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "io/file.h"

namespace ckpt {

// For who reads a file once, in whatever order: nearly all of what was not
// in the system's page cache before is not in it afterwards, and pushes nothing else out of it
// (docs/decisions/0074). A file that was there stays; single pages of one leave, before it is read,
// since each cuts what the system reads ahead. Only hints: reading is right without them.
class DropBehind {
 public:
  // Looks whether the file is in the page cache: before it is read.
  explicit DropBehind(const File& file);

  // Takes note of bytes that were read. An extent of the file leaves the page cache when most of it
  // has passed, once. Thread-safe. `file`: the same, maybe opened again, maybe longer by now.
  void passed(const File& file, uint64_t offset_bytes, uint64_t count_bytes);

 private:
  uint64_t size_bytes_;
  std::vector<std::atomic<uint64_t>> passed_bytes_;  // of each extent; none: nothing is dropped
};

}  // namespace ckpt
