#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/random_access.h>

#include "base/checked_math.h"

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

// A file of which a part was read already; what is not in it is read from the file. Both must
// outlive it.
class HeldBytes final : public RandomAccess {
 public:
  HeldBytes(const RandomAccess& file, uint64_t offset_bytes, std::span<const std::byte> bytes)
      : file_(file), offset_bytes_(offset_bytes), bytes_(bytes) {}

  uint64_t size_bytes() const override { return file_.size_bytes(); }
  const std::string& file_name() const override { return file_.file_name(); }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    const auto held = held_at({offset_bytes, out.size()});
    if (!held) return file_.read_at(offset_bytes, out);
    std::copy(held->begin(), held->end(), out.begin());  // std::ranges' goes byte by byte
  }
  std::optional<std::span<const std::byte>> held_at(ByteRange bytes) const {
    const bool is_held = bytes.offset_bytes >= offset_bytes_ &&
                         fits(bytes.offset_bytes - offset_bytes_, bytes.count_bytes, bytes_.size());
    if (!is_held) return std::nullopt;
    return bytes_.subspan(bytes.offset_bytes - offset_bytes_, bytes.count_bytes);
  }

 private:
  const RandomAccess& file_;
  uint64_t offset_bytes_;
  std::span<const std::byte> bytes_;
};

}  // namespace ckpt
