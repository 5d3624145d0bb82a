#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <kernels/mirrored_tiles.h>

// A symmetric product by a kernel of our own, for compute capability 9.0.
namespace kernels {

// result = alpha F F^T + beta addend, of a batch of matrices of bf16, one behind the other: F is
// `edge` x `depth`, result and addend are `edge` x `edge`, contiguous. Sums are fp32; a result is
// rounded once, its scaled addend included. Only tiles on one side of the diagonal are computed,
// and each is written to both, so that the result is symmetric bit by bit. The addend must be
// symmetric, and is not read where beta is 0. edge and depth are multiples of 8, all memory begins
// at multiples of 16 bytes.
struct MirroredProduct {
  CUtensorMap factor;  // from map_factor()
  const void* addend;
  void* result;
  int64_t edge, depth, batch;
  float alpha, beta;
};

// F as it lies in memory: rows of F are contiguous, or its columns are (F is the transpose of a
// row-major matrix).
enum class FactorOrder : uint8_t { Rows, Columns };

struct MirroredFactor {
  const void* memory;
  FactorOrder order;
  int64_t edge, depth, batch;
};

// What the kernel needs to know to load F: a function of the driver that needs no device, found
// when the program runs. cudaErrorInvalidValue for sizes or addresses that cannot be;
// cudaErrorNotSupported where the driver does not have it.
cudaError_t map_factor(const MirroredFactor& factor, CUtensorMap* map);

struct MirroredLaunch {
  FactorOrder order;
  TileDeal deal;
  int multiprocessors;  // as many blocks at most, each of which takes its turns
};

// Loads the kernel, which needs more shared memory than others. An error where this device cannot
// run it.
cudaError_t prepare_mirrored(const MirroredLaunch& launch);

// Queues the product on `stream`, waits for nothing, allocates nothing, can be captured.
cudaError_t mirrored_product(const MirroredProduct& product, const MirroredLaunch& launch,
                             cudaStream_t stream);

}  // namespace kernels
