#pragma once

#include <cstdint>
#include <source_location>

#include <cuda.h>

// What kernels/ptx/sm90.cuh has instructions for, after the text of the PTX ISA, and as late and as
// unkind as that allows: the bytes of a load are not there before its barrier's phase ends, and
// what was in their place is gone at once; a product reads its operands when its warp waits for it,
// and its sums are no numbers until then. Fails in the thread for what is undefined.
namespace emulation {

// --- Shared memory: of the next launches, in bytes; the start of a block fills it with NaN. Begins
// at a multiple of 16 bytes only, as the toolkit promises.
void set_shared_bytes(uint64_t bytes);
char* dynamic_shared();
uint32_t shared_address(const void* pointer);

// --- mbarrier
void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_init_fence();
void barrier_arrive(uint32_t barrier, uint32_t expected_bytes);
bool barrier_has_ended(uint32_t barrier, uint32_t parity);

// --- cp.async.bulk.tensor
struct TilePlace {
  int x, y, z;
};
struct TileLoad {
  uint32_t to;
  const CUtensorMap* map;
  uint32_t barrier;
  TilePlace from;
};
void load_tile(const TileLoad& load);

// --- wgmma m64n128k16, of bf16, both operands in shared memory
constexpr int kSumsPerThread = 64;
struct Sums {
  float at[kSumsPerThread];
};
struct Product {
  Sums* sums;
  uint64_t a, b;
  bool has_columns, accumulates;
};
void products_fence();
void multiply(const Product& product);
void products_commit();
// For the whole warp: no lane goes on before all have waited.
void products_wait(unsigned pending, const std::source_location& place);

// Element (row, place in the sum) of an operand: its address.
uint32_t operand_address(uint64_t operand, bool has_columns, unsigned row, unsigned k);
// The row and column of a thread's sum.
struct SumPlace {
  unsigned row, column;
};
SumPlace place_of_sum(unsigned thread, unsigned sum);

}  // namespace emulation
