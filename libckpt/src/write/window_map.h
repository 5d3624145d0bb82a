#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ckpt/plan.h>

namespace ckpt {

// A part of a target file that is composed in one buffer and written with one call.
struct Window {
  size_t piece = 0;  // index into the pieces
  uint32_t file = 0;
  ByteRange bytes;  // in the file
};

// Pieces of a plan's files, one after the other, cut at multiples of the windows' length. An empty
// piece has one empty window. What the files hold does not depend on the cuts. Immutable.
class WindowMap {
 public:
  // `pieces`: some of cut_into_pieces(), in their order.
  WindowMap(std::vector<Piece> pieces, uint64_t window_bytes);

  const std::vector<Piece>& pieces() const { return pieces_; }

  size_t count() const { return first_window_.back(); }
  size_t count_in(size_t piece) const { return first_window_[piece + 1] - first_window_[piece]; }
  Window window(size_t index) const;
  // Of the windows in files before this one, or in it from before an offset on.
  size_t count_before(uint32_t file, uint64_t offset_bytes) const;
  // How many windows show some of these bytes of a file.
  size_t count_over(uint32_t file, ByteRange bytes) const;

 private:
  std::vector<Piece> pieces_;
  uint64_t window_bytes_;
  std::vector<size_t> first_window_;  // by piece, and one for the end
};

}  // namespace ckpt
