#include "write/window_map.h"

#include <algorithm>
#include <utility>

namespace ckpt {

WindowMap::WindowMap(std::vector<Piece> pieces, uint64_t window_bytes)
    : pieces_(std::move(pieces)), window_bytes_(window_bytes), first_window_{0} {
  first_window_.reserve(pieces_.size() + 1);
  for (const Piece& piece : pieces_) {
    const uint64_t windows = (piece.bytes.count_bytes + window_bytes - 1) / window_bytes;
    first_window_.push_back(first_window_.back() + std::max<size_t>(1, windows));
  }
}

Window WindowMap::window(size_t index) const {
  const auto next = std::ranges::upper_bound(first_window_, index);
  const auto number = static_cast<size_t>(next - first_window_.begin() - 1);
  const Piece& piece = pieces_[number];
  const uint64_t offset_bytes = (index - first_window_[number]) * window_bytes_;
  const uint64_t left_bytes = piece.bytes.count_bytes - offset_bytes;
  return {number,
          piece.file,
          {piece.bytes.offset_bytes + offset_bytes, std::min(window_bytes_, left_bytes)}};
}

size_t WindowMap::count_before(uint32_t file, uint64_t offset_bytes) const {
  const auto next = std::ranges::lower_bound(
      pieces_, std::pair(file, offset_bytes), {},
      [](const Piece& piece) { return std::pair(piece.file, piece.bytes.offset_bytes); });
  const auto number = static_cast<size_t>(next - pieces_.begin());
  if (number == 0 || pieces_[number - 1].file != file) return first_window_[number];
  const Piece& piece = pieces_[number - 1];
  const uint64_t part_bytes =
      std::min(offset_bytes - piece.bytes.offset_bytes, piece.bytes.count_bytes);
  return first_window_[number - 1] + (part_bytes + window_bytes_ - 1) / window_bytes_;
}

size_t WindowMap::count_over(uint32_t file, ByteRange bytes) const {
  size_t count = 0;
  for (auto piece = std::ranges::lower_bound(pieces_, file, {}, &Piece::file);
       piece != pieces_.end() && piece->file == file; ++piece) {
    const uint64_t start = std::max(piece->bytes.offset_bytes, bytes.offset_bytes);
    const uint64_t end = std::min(piece->bytes.end_bytes(), bytes.end_bytes());
    if (start >= end) continue;
    const uint64_t front_bytes = piece->bytes.offset_bytes;
    count += (end - front_bytes - 1) / window_bytes_ - (start - front_bytes) / window_bytes_ + 1;
  }
  return count;
}

}  // namespace ckpt
