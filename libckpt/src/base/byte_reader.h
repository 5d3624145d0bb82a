#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "base/checked_math.h"

namespace ckpt {

// A bounds-checked cursor over bytes that came from a file. It knows which file and where in it, so
// that every failure is Error{Corrupt, {file, offset of the offending byte}}. The bytes must
// outlive the reader and all that it returns, the file's name the reader. Multi-byte numbers are
// little-endian unless the name says otherwise.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes, std::string_view file = {},
                      uint64_t base_offset_bytes = 0)
      : bytes_(bytes), file_(file), base_offset_bytes_(base_offset_bytes) {}

  size_t position() const { return position_; }  // from the start of the span
  size_t left_bytes() const { return bytes_.size() - position_; }
  bool at_end() const { return position_ == bytes_.size(); }
  // Whether so many bytes are left.
  bool has(uint64_t count) const {
    ran_out_ = ran_out_ || count > left_bytes();
    return count <= left_bytes();
  }
  bool ran_out() const { return ran_out_; }  // more bytes were wanted than there are
  uint64_t file_offset_bytes() const { return base_offset_bytes_ + position_; }
  std::string file() const { return std::string(file_); }

  uint8_t u8() { return unsigned_le<uint8_t>(); }
  uint16_t u16() { return unsigned_le<uint16_t>(); }
  uint32_t u32() { return unsigned_le<uint32_t>(); }
  uint64_t u64() { return unsigned_le<uint64_t>(); }
  int32_t i32() { return static_cast<int32_t>(u32()); }
  double f64_be();

  // The next `count` bytes, as they are.
  std::span<const std::byte> bytes(uint64_t count) {
    require(count);
    const auto result = bytes_.subspan(position_, count);
    position_ += count;
    return result;
  }
  std::string_view text(uint64_t count);
  // A reader of the next `count` bytes.
  ByteReader part(uint64_t count) {
    const uint64_t offset_bytes = file_offset_bytes();
    return ByteReader(bytes(count), file_, offset_bytes);
  }
  // Up to the next '\n', which is consumed but not returned. Fails where no '\n' follows.
  std::string_view line();
  // A length of `count` items of at least `item_bytes` each that must fit into what is left: the
  // check to make before anything is allocated for them.
  uint64_t count_of(uint64_t count, uint64_t item_bytes) const;

  void skip(uint64_t count) { bytes(count); }
  void seek(size_t position);  // from the start of the span; fails beyond its end

  // Throws Error{Corrupt} at the cursor, or at a position of the span.
  [[noreturn]] void fail(std::string problem) const { fail_at(position_, std::move(problem)); }
  [[noreturn]] void fail_at(size_t position, std::string problem) const;

 private:
  void require(uint64_t count) const {
    if (count > left_bytes()) fail_short(count);
  }
  [[noreturn]] void fail_short(uint64_t count) const;

  template <typename T>
  T unsigned_le() {
    require(sizeof(T));
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {  // compiles to one load on little-endian machines
      value =
          static_cast<T>(value | static_cast<T>(static_cast<T>(bytes_[position_ + i]) << (8 * i)));
    }
    position_ += sizeof(T);
    return value;
  }

  std::span<const std::byte> bytes_;
  std::string_view file_;
  uint64_t base_offset_bytes_;
  size_t position_ = 0;
  mutable bool ran_out_ = false;
};

// What is said of a file that ends after `found_bytes`; `expected_bytes`: how long it was, where
// that is known.
std::string truncated_text(uint64_t found_bytes, std::optional<uint64_t> expected_bytes = {});

// The same as an error, Corrupt and incomplete.
Error truncated(Where where, uint64_t found_bytes, std::optional<uint64_t> expected_bytes = {});

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
