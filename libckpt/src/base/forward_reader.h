#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ckpt/random_access.h>

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

  // The same without taking them, near the end of the file, too, which is continued by zeros;
  // count <= kPaddingBytes. skip() then takes as many as are wanted.
  const std::byte* peek_padded(size_t count) {
    if (end_ - at_ < count) fill(static_cast<size_t>(std::min<uint64_t>(count, left_bytes())));
    return window_.data() + at_;
  }
  // What was looked at, at the most, and is no padding.
  void skip(size_t count) { at_ += count; }

 private:
  static constexpr size_t kPaddingBytes = 2048;

  bool fill(size_t count);

  const RandomAccess& file_;
  size_t window_bytes_;
  std::vector<std::byte> window_;  // and the padding
  size_t at_ = 0, end_ = 0;        // in the window
  uint64_t left_bytes_;            // not yet in the window
};

}  // namespace ckpt
