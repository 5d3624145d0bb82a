#include <kernels/symmetric_plan.h>

#include <algorithm>

namespace kernels {
namespace {

constexpr int64_t kPartsMost = 8;  // n parts cost (n + 1) / 2n of the whole product

int64_t divided_up(int64_t count, int64_t by) { return (count + by - 1) / by; }
int64_t rounded_up(int64_t count, int64_t by) { return divided_up(count, by) * by; }

// Multiply-adds a cycle and multiprocessor, from NVIDIA's published peaks without sparsity.
double fmas_per_cycle(const DeviceRates& rates, const SymmetricShape& shape) {
  if (shape.type == ElementType::F32 && !shape.tf32) {
    return rates.major == 8 && rates.minor == 0 ? 64 : 128;
  }
  const double bf16 = rates.major == 10                      ? 4096
                      : rates.major == 9                     ? 2048
                      : rates.major == 8 && rates.minor == 0 ? 1024
                                                             : 512;
  return shape.type == ElementType::F32 ? bf16 / 2 : bf16;
}

double panel_bytes_per_cycle(const DeviceRates& rates, const SymmetricShape& shape) {
  if (shape.edge * shape.k * bytes_of(shape.type) <= rates.cache_bytes) return kCachedBytesPerCycle;
  return shape.k <= kDeepTurn ? kUncachedBytesPerCycle : kDeepBytesPerCycle;
}

SymmetricBy by_tiles(TileDeal deal) {
  return deal == TileDeal::Pairs ? SymmetricBy::TilesInPairs : SymmetricBy::TilesAlone;
}

}  // namespace

double product_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t rows,
                       int64_t columns) {
  const ProductTile& tile = shape.tile;
  const int64_t tiles =
      divided_up(rows, tile.rows) * divided_up(columns, tile.columns) * shape.batch;
  const auto waves = static_cast<double>(divided_up(tiles, rates.multiprocessors));
  const double cycles = static_cast<double>(tile.rows * tile.columns) *
                        (static_cast<double>(shape.k) + kTileExtra) /
                        (fmas_per_cycle(rates, shape) * kPeakReached);
  const auto elements =
      static_cast<double>(((rows + columns) * shape.k + rows * columns) * shape.batch);
  const double memory = elements * bytes_of(shape.type) / rates.bytes_per_second;
  return kLaunchSeconds + std::max(waves * cycles / rates.cycles_per_second, memory);
}

double mirror_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t block) {
  double elements = 0;
  for (int64_t column = 0; column < shape.edge; column += block) {
    const int64_t end = std::min(column + block, shape.edge);
    elements += static_cast<double>((end - column) * (shape.edge - end));
  }
  const double bytes = 2 * elements * static_cast<double>(shape.batch * bytes_of(shape.type));
  return kLaunchSeconds + bytes / rates.bytes_per_second;
}

double cut_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t block) {
  double seconds = mirror_seconds(rates, shape, block);
  for (int64_t column = 0; column < shape.edge; column += block) {
    for (int64_t row = column; row < shape.edge; row += block) {
      seconds += product_seconds(rates, shape, std::min(block, shape.edge - row),
                                 std::min(block, shape.edge - column));
    }
  }
  return seconds;
}

bool can_be_mirrored(const DeviceRates& rates, const SymmetricShape& shape) {
  return rates.major == 9 && rates.minor == 0 && shape.type == ElementType::BF16 &&
         is_mirrored_size(shape.edge, shape.k, shape.batch);
}

double mirrored_seconds(const DeviceRates& rates, const SymmetricShape& shape, TileDeal deal) {
  const bool has_pairs = deal == TileDeal::Pairs;
  const double tiles = has_pairs ? 2 : 1, panels = has_pairs ? 3 : 2;  // of a turn
  const double extra = has_pairs ? kPairsExtra : kAloneExtra;
  const int64_t turns = TileTurns(shape.edge, deal).of_matrix() * shape.batch;
  const auto waves = static_cast<double>(divided_up(turns, rates.multiprocessors));
  const auto k = static_cast<double>(shape.k);
  const double multiplying = tiles * kMirroredTile * kMirroredTile * (k + extra) /
                             (fmas_per_cycle(rates, shape) * kPeakReached);
  const double loading =
      panels * kMirroredTile * k * bytes_of(shape.type) / panel_bytes_per_cycle(rates, shape);
  const auto elements =
      static_cast<double>((shape.edge * shape.k + shape.edge * shape.edge) * shape.batch);
  const double memory = elements * bytes_of(shape.type) / rates.bytes_per_second;
  return kLaunchSeconds + kMirroredStartSeconds +
         std::max(waves * std::max(multiplying, loading) / rates.cycles_per_second, memory);
}

SymmetricPlan plan_symmetric(const DeviceRates& rates, const SymmetricShape& shape) {
  const double plain = product_seconds(rates, shape, shape.edge, shape.edge);
  SymmetricPlan best = {0, plain, plain};
  const auto is_better = [&](double seconds) {
    return seconds <= plain * (1 - kCutGainLeast) && seconds < best.seconds;
  };
  const int64_t unit = rounded_up(std::min(shape.tile.rows, shape.tile.columns), kMirrorTile);
  for (int64_t parts = 2; parts <= kPartsMost; ++parts) {
    const int64_t block = rounded_up(divided_up(shape.edge, parts), unit);
    if (block >= shape.edge) continue;
    const double seconds = cut_seconds(rates, shape, block);
    if (!is_better(seconds)) continue;
    best.block = block;
    best.seconds = seconds;
  }
  if (!shape.allows_mirrored || !can_be_mirrored(rates, shape)) return best;
  for (const TileDeal deal : {TileDeal::Alone, TileDeal::Pairs}) {
    const double seconds = mirrored_seconds(rates, shape, deal);
    if (!is_better(seconds)) continue;
    best = {0, seconds, plain, by_tiles(deal)};
  }
  return best;
}

void choose_blocks(const DeviceRates& rates, ProductTile gram, ProductTile polynomial,
                   NewtonSchulzShape& shape) {
  const int64_t edge = std::min(shape.rows, shape.columns);
  const int64_t k = std::max(shape.rows, shape.columns);
  const SymmetricShape squares = {edge,       edge,       shape.batch,          shape.type,
                                  shape.tf32, polynomial, shape.allows_mirrored};
  SymmetricShape grams = squares;
  grams.k = k;
  grams.tile = gram;
  const SymmetricPlan of_gram = plan_symmetric(rates, grams);
  const SymmetricPlan of_polynomial = plan_symmetric(rates, squares);
  shape.gram_block = of_gram.block;
  shape.gram_by = of_gram.by;
  shape.polynomial_block = of_polynomial.block;
  shape.polynomial_by = of_polynomial.by;
}

}  // namespace kernels
