#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random_access.h"

namespace ckpt {

// Reads a file once, from front to back, through a window: for files that need not be in memory as
// a whole. The file must outlive it.
class ForwardReader {
 public:
  explicit ForwardReader(const RandomAccess& file);

  // What is between the cursor and the end of the file.
  uint64_t left_bytes() const { return left_bytes_ + (end_ - at_); }

  // The next `count` bytes, or nullptr where the file or the window is too short for them.
  const std::byte* take(size_t count) {
    if (end_ - at_ < count && !fill(count)) return nullptr;
    const std::byte* bytes = window_.data() + at_;
    at_ += count;
    return bytes;
  }

  // The same without taking them; skip() then takes as many as are wanted.
  const std::byte* peek(size_t count) {
    if (end_ - at_ < count && !fill(count)) return nullptr;
    return window_.data() + at_;
  }
  void skip(size_t count) { at_ += count; }

  // Takes these bytes if they come next and are in the window already.
  bool take_if(std::string_view bytes) {
    if (end_ - at_ < bytes.size()) return false;
    const bool are_next = std::memcmp(window_.data() + at_, bytes.data(), bytes.size()) == 0;
    if (are_next) at_ += bytes.size();
    return are_next;
  }

  // Up to the next '\n', which is consumed but not returned; false where none follows in the
  // window.
  bool take_line(std::string_view& line);

 private:
  bool fill(size_t count);

  const RandomAccess& file_;
  std::vector<std::byte> window_;
  size_t at_ = 0, end_ = 0;  // in the window
  uint64_t left_bytes_;      // not yet in the window
};

}  // namespace ckpt
