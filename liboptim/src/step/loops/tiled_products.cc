#include "step/loops/tiled_products.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <vector>

#include "step/loops/single_thread.h"

namespace optim {
namespace {

constexpr int64_t kTileRows = 512;
constexpr int64_t kTileColumns = 1024;  // of the product that is not symmetric

struct Tile {
  int64_t row = 0, rows = 0;
  int64_t column = 0, columns = 0;

  at::Tensor of(const at::Tensor& matrix) const {
    return matrix.narrow(0, row, rows).narrow(1, column, columns);
  }
  Tile mirrored() const { return {column, columns, row, rows}; }
};

// The lower half of a symmetric matrix, its diagonal tiles whole. Largest first does not matter:
// all have the same size but those of the last row.
std::vector<Tile> lower_tiles(int64_t size) {
  std::vector<Tile> tiles;
  for (int64_t row = 0; row < size; row += kTileRows) {
    for (int64_t column = 0; column <= row; column += kTileRows) {
      tiles.push_back(
          {row, std::min(kTileRows, size - row), column, std::min(kTileRows, size - column)});
    }
  }
  return tiles;
}

std::vector<Tile> all_tiles(int64_t rows, int64_t columns) {
  std::vector<Tile> tiles;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for (int64_t column = 0; column < columns; column += kTileColumns) {
      tiles.push_back(
          {row, std::min(kTileRows, rows - row), column, std::min(kTileColumns, columns - column)});
    }
  }
  return tiles;
}

// compute(tile) for each, by one thread each.
template <class Compute>
void for_each_tile(const std::vector<Tile>& tiles, Compute&& compute) {
  at::parallel_for(0, static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    const SingleThread single_thread;
    for (int64_t i = begin; i < end; ++i) compute(tiles[static_cast<size_t>(i)]);
  });
}

// Without these LibTorch multiplies bf16 matrices element by element
// (mkldnn_bf16_device_check of ATen/native/mkldnn/Utils.h).
bool has_fast_bf16() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return has;
#else
  return true;
#endif
}

// beta C + alpha A B; C may be undefined. MKL groups long fp32 sums in its own ways: they are cut
// before that. Sums of two-byte elements are not, each piece would round: they are in fp32 inside,
// and rounded once, by LibTorch or here.
constexpr int64_t kInner = 256;

at::Tensor tile_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                        ProductScales scales) {
  const at::ScalarType type = a.scalar_type();
  if (type == at::kHalf || (type == at::kBFloat16 && !has_fast_bf16())) {
    const auto wide = [](const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; };
    return tile_product(wide(c), wide(a), wide(b), scales).to(type);
  }
  const int64_t inner = a.size(1);
  const int64_t step = a.scalar_type() == at::kFloat ? kInner : inner;
  at::Tensor sum = c;
  for (int64_t begin = 0; begin < inner; begin += step) {
    const int64_t count = std::min(step, inner - begin);
    const at::Tensor left = a.narrow(1, begin, count), right = b.narrow(0, begin, count);
    if (begin > 0) {
      sum.addmm_(left, right, 1, scales.alpha);
    } else if (c.defined()) {
      sum = at::addmm(c, left, right, scales.beta, scales.alpha);
    } else {
      sum = at::mm(left, right);
    }
  }
  return sum;
}

// Writes a computed tile and, below the diagonal, its mirror image.
void write_symmetric(const at::Tensor& matrix, const Tile& tile, const at::Tensor& values) {
  tile.of(matrix).copy_(values);
  if (tile.row != tile.column) tile.mirrored().of(matrix).copy_(values.t().contiguous());
}

}  // namespace

at::Tensor gram_matrix(const at::Tensor& x) {
  const int64_t size = x.size(0);
  const at::Tensor gram = at::empty({size, size}, x.options());
  for_each_tile(lower_tiles(size), [&](const Tile& tile) {
    const at::Tensor left = x.narrow(0, tile.row, tile.rows);
    const at::Tensor right = x.narrow(0, tile.column, tile.columns);
    write_symmetric(gram, tile, tile_product({}, left, right.t(), {}));
  });
  return gram;
}

at::Tensor add_square(const at::Tensor& symmetric, ProductScales scales) {
  return add_symmetric(symmetric, symmetric, symmetric, scales);
}

at::Tensor add_symmetric(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                         ProductScales scales) {
  const at::Tensor sum = at::empty_like(a);
  for_each_tile(lower_tiles(a.size(0)), [&](const Tile& tile) {
    const at::Tensor left = a.narrow(0, tile.row, tile.rows);
    const at::Tensor right = b.narrow(0, tile.column, tile.columns).t();
    write_symmetric(sum, tile, tile_product(tile.of(c), left, right, scales));
  });
  return sum;
}

at::Tensor add_product(const at::Tensor& s, const at::Tensor& x, ProductScales scales) {
  const at::Tensor sum = at::empty_like(x);
  for_each_tile(all_tiles(x.size(0), x.size(1)), [&](const Tile& tile) {
    const at::Tensor left = s.narrow(0, tile.row, tile.rows);
    const at::Tensor right = x.narrow(1, tile.column, tile.columns);
    tile.of(sum).copy_(tile_product(tile.of(x), left, right, scales));
  });
  return sum;
}

bool is_one_tile(const at::Tensor& matrix) {
  return std::min(matrix.size(0), matrix.size(1)) <= kTileRows &&
         std::max(matrix.size(0), matrix.size(1)) <= kTileColumns;
}

}  // namespace optim
