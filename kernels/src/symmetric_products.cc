#include <kernels/newton_schulz_products.h>

#include <algorithm>

namespace kernels {
namespace {

constexpr int64_t kTileRows = 128, kTileColumns = 256;  // cuBLASLt's for bf16 on an H100, mostly
constexpr int64_t kPartsMost = 4;  // more save little: n parts cost (n + 1) / 2n of the whole

int64_t divided_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Waves of a batch of products on so many multiprocessors.
struct Waves {
  int64_t batch, multiprocessors;

  int64_t of(int64_t rows, int64_t columns) const {
    const int64_t tiles = divided_up(rows, kTileRows) * divided_up(columns, kTileColumns) * batch;
    return divided_up(tiles, multiprocessors);
  }
  int64_t in_blocks(int64_t edge, int64_t block) const {
    int64_t waves = 0;
    for (int64_t column = 0; column < edge; column += block) {
      for (int64_t row = column; row < edge; row += block) {
        waves += of(std::min(block, edge - row), std::min(block, edge - column));
      }
    }
    return waves;
  }
};

}  // namespace

std::vector<NsProduct> blocks_of(const NsProduct& whole, int64_t block) {
  const int64_t a_step = whole.transpose_a ? whole.a_leading : 1;  // to the next row of op(a)
  const int64_t b_step = whole.transpose_b ? 1 : whole.b_leading;  // to the next column of op(b)
  std::vector<NsProduct> blocks;
  for (int64_t column = 0; column < whole.n; column += block) {
    for (int64_t row = column; row < whole.m; row += block) {
      NsProduct part = whole;
      part.m = std::min(block, whole.m - row);
      part.n = std::min(block, whole.n - column);
      part.a_offset += row * a_step;
      part.b_offset += column * b_step;
      part.d_offset += row + column * whole.d_leading;
      blocks.push_back(part);
    }
  }
  return blocks;
}

int64_t symmetric_block_for(const NewtonSchulzShape& shape, int multiprocessors) {
  const Waves count = {shape.batch, multiprocessors};
  const int64_t edge = std::min(shape.rows, shape.columns);
  const int64_t whole = count.of(edge, edge);
  int64_t best = 0;
  int64_t fewest = whole - divided_up(whole, 8);
  for (int64_t parts = 2; parts <= kPartsMost; ++parts) {
    const int64_t block = divided_up(edge, parts * kTileRows) * kTileRows;
    if (block < kTileColumns || block >= edge) continue;
    const int64_t waves = count.in_blocks(edge, block);
    if (waves > fewest || (best != 0 && waves == fewest)) continue;
    best = block;
    fewest = waves;
  }
  return best;
}

}  // namespace kernels
