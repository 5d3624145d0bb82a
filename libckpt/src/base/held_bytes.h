#pragma once

#include <algorithm>
#include <optional>

#include <ckpt/catalog.h>
#include <ckpt/random_access.h>

#include "base/checked_math.h"

namespace ckpt {

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
