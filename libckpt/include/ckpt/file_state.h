#pragma once

#include <cstdint>

namespace ckpt {

// What tells one state of a file from another, the same on every machine that sees it.
struct FileState {
  uint64_t inode = 0;
  uint64_t count_bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  bool operator==(const FileState&) const = default;
};

}  // namespace ckpt
