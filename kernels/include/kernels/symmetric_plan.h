#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <kernels/element_type.h>
#include <kernels/mirrored_tiles.h>
#include <kernels/newton_schulz_products.h>

namespace kernels {

// What the choice of a cut needs to know of a device.
struct DeviceRates {
  int multiprocessors = 132;
  double cycles_per_second = 1.98e9;        // of a multiprocessor, at most
  double bytes_per_second = 3.35e12;        // of its memory
  int64_t cache_bytes = int64_t{50} << 20;  // that all multiprocessors share
  int major = 9;                            // compute capability: multiplications a cycle
  int minor = 0;
};
cudaError_t device_rates(DeviceRates* rates);  // of the current device

// Rows and columns of a product that one block of threads computes.
struct ProductTile {
  int64_t rows = 128, columns = 256;  // cuBLASLt's for bf16 on an H100, mostly
};

// A batch of symmetric products of `edge` x `edge`, summed over k.
struct SymmetricShape {
  int64_t edge, k, batch;
  ElementType type;  // BF16 or F32
  bool tf32;
  ProductTile tile;  // of cuBLASLt's algorithm for the whole product
  bool allows_mirrored = false;
};

struct SymmetricPlan {
  int64_t block;         // edge of the blocks on and below the diagonal; 0: the whole product
  double seconds;        // by the model, mirror included
  double plain_seconds;  // of the whole product
  SymmetricBy by = SymmetricBy::CublasLt;
};

// The cut that the model says is fastest, or none where no cut saves kCutGainLeast of the whole
// product's time. The kernel of mirrored_product.h is one of those to choose from, where it is
// allowed and can be: bf16 on compute capability 9.0, sizes of multiples of 8. Pure.
//
// The model: tiles are dealt to multiprocessors in waves, each of which takes the multiplications
// of a tile and as long again as kTileExtra steps of k; not less than its operands take from
// memory. Each launch costs kLaunchSeconds, the mirror a launch and its bytes. The constants fit
// what an H100 took (docs/records/optimizer_steps.md).
SymmetricPlan plan_symmetric(const DeviceRates& rates, const SymmetricShape& shape);

// Of one product of rows x columns, in a batch; and of the mirror of blocks.
double product_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t rows,
                       int64_t columns);
double mirror_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t block);
// Of all blocks of a cut, one after the other, and their mirror.
double cut_seconds(const DeviceRates& rates, const SymmetricShape& shape, int64_t block);
// Of the whole product by mirrored_product(): waves of turns, not faster than their panels come
// from the cache that all multiprocessors share; where the factor does not lie in it, slower, and
// slower still where a turn is so deep that blocks drift apart and each loads from memory.
double mirrored_seconds(const DeviceRates& rates, const SymmetricShape& shape, TileDeal deal);
bool can_be_mirrored(const DeviceRates& rates, const SymmetricShape& shape);

constexpr double kLaunchSeconds = 3e-6;  // from the end of one to the work of the next
constexpr double kPeakReached = 0.8;     // of the multiplications that a device could do
constexpr double kTileExtra = 128;
constexpr double kCutGainLeast = 0.05;
// Of mirrored_product(): until the first products, what a turn takes beside its products (pairs do
// not multiply while they store), and bytes of panels a cycle and multiprocessor.
constexpr double kMirroredStartSeconds = 4e-6;
constexpr double kAloneExtra = 512, kPairsExtra = 768;
constexpr double kCachedBytesPerCycle = 43, kUncachedBytesPerCycle = 33, kDeepBytesPerCycle = 22;
constexpr int64_t kDeepTurn = 16384;

// Fills gram_block, polynomial_block, gram_by and polynomial_by of a shape, whose products have
// these tiles.
void choose_blocks(const DeviceRates& rates, ProductTile gram, ProductTile polynomial,
                   NewtonSchulzShape& shape);

}  // namespace kernels
