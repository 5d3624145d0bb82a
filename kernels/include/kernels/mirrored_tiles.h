#pragma once

#include <cstdint>

#include <kernels/host_device.h>

// How the tiles of a symmetric product are dealt to blocks of threads that take one after the
// other. Panels are kMirroredTile rows of the factor; tile (own, shared) is panel `own` times panel
// `shared` transposed, and lies in both places of the result: which of the two panels is the larger
// one does not matter.
namespace kernels {

constexpr int kMirroredTile = 128;

// Whether the kernel takes such sizes: vectors of 16 bytes, and places of 32 bits.
inline bool is_mirrored_size(int64_t edge, int64_t depth, int64_t batch) {
  constexpr int64_t kMost = INT32_MAX / 2;
  const bool has_vectors = edge % 8 == 0 && depth % 8 == 0;
  const bool is_some = edge > 0 && depth > 0 && batch > 0;
  return has_vectors && is_some && edge <= kMost && depth <= kMost && batch <= kMost;
}

// Alone: a turn is one tile, and a block's two warpgroups take turns. Pairs: a turn is two tiles
// with one shared panel, a tile for each warpgroup, so that three panels are loaded for two tiles.
enum class TileDeal : uint8_t { Alone, Pairs };

struct TileTurn {
  int matrix;
  int shared;
  int own[2];  // equal where there is one tile
  int count;   // 1 or 2
};

// Pairs of neighbouring tiles of one column. Where that leaves one over (every other column has an
// odd number), it is the one of row 0: those share panel 0, and make pairs among themselves.
class TileTurns {
 public:
  CKPT_HOST_DEVICE TileTurns(int64_t edge, TileDeal deal)
      : panels_(static_cast<int>((edge + kMirroredTile - 1) / kMirroredTile)), deal_(deal) {}

  CKPT_HOST_DEVICE int64_t of_matrix() const {
    const int64_t tiles = int64_t{panels_} * (panels_ + 1) / 2;
    return deal_ == TileDeal::Alone ? tiles : (tiles + 1) / 2;
  }

  CKPT_HOST_DEVICE TileTurn at(int64_t number) const {
    const int64_t matrix = number / of_matrix();
    auto rest = static_cast<int>(number - matrix * of_matrix());
    int column = 0;
    while (column < panels_ && rest >= turns_of(column)) rest -= turns_of(column++);
    TileTurn turn = {static_cast<int>(matrix), column, {rest, rest}, 1};
    if (deal_ == TileDeal::Alone) return turn;
    if (column < panels_) {
      const int row = column % 2 == 0 ? 2 * rest + 1 : 2 * rest;
      return {turn.matrix, column, {row, row + 1}, 2};
    }
    const int first = 4 * rest;  // tiles that were left over: of columns 0, 2, 4, ...
    turn.shared = 0;
    turn.own[0] = turn.own[1] = first;
    if (first + 2 < panels_) {
      turn.own[1] = first + 2;
      turn.count = 2;
    }
    return turn;
  }

 private:
  CKPT_HOST_DEVICE int turns_of(int column) const {
    return deal_ == TileDeal::Alone ? column + 1 : (column + 1) / 2;
  }

  int panels_;
  TileDeal deal_;
};

}  // namespace kernels
