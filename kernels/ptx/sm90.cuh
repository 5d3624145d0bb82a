#pragma once

#include <cstdint>

#include <cuda.h>

// Instructions of PTX for compute capability 9.0a that C++ has no words for: barriers in shared
// memory that count bytes, loads of tiles by the tensor memory accelerator, products of
// warpgroups. tests/kernels/emulation/cuda/sm90.cuh has models of the same functions.
namespace sm90 {

// --- Shared memory, by addresses of 32 bits

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// What the launch asked for.
__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(1024) char memory[];
  return memory;
}

// --- Barriers: 8 bytes, of phases that end when all have arrived and all bytes that were expected
// are there. Phases are waited for by their parity; the first one's is 0.

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Behind all barrier_init() of a thread: the accelerator sees them. Other threads need a barrier of
// the block besides.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Until the phase of this parity has ended; a barrier that has not begun counts as one whose phase
// of parity 1 has.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t has_ended = 0;
  while (has_ended == 0) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(has_ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// Of so many threads of the block, all of whole warps; numbers 1 to 15.
template <int kNumber, int kThreads>
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
}

// --- Loads of tiles

struct TilePlace {
  int x, y, z;  // of the first element; what lies outside of the tensor is zero
};

// The map is a parameter of the kernel (__grid_constant__).
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box that the map says. Its bytes arrive some time before the phase of `barrier` ends.
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                          TilePlace from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(from.x), "r"(from.y), "r"(from.z)
      : "memory");
}

// --- Products of a warpgroup: 64 x 128 sums of 16 products each, of bf16 operands in shared memory

constexpr int kSumsPerThread = 64;
struct Sums {
  float at[kSumsPerThread];
};

// Before the first product, and wherever sums were read or written otherwise.
__device__ __forceinline__ void products_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Those queued since the last call become a group.
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most so many groups of this warp are not done.
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Behind the wait: the compiler must not take the sums from before it.
__device__ __forceinline__ void use_sums(Sums& sums) {
#pragma unroll
  for (int i = 0; i < kSumsPerThread; ++i) asm volatile("" : "+f"(sums.at[i])::"memory");
}

#define SUMS_OF_8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// Queues sums (+)= a b^T; operands are matrix descriptors. Thread t of the warpgroup has rows t /
// 32 * 16 + t % 32 / 4 and the eighth one below, and columns 8 j + t % 4 * 2 and the next: sums 4
// j, 4 j + 1, and 4 j + 2, 4 j + 3. kColumns: columns of the operands are contiguous, not rows.
template <bool kColumns>
__device__ __forceinline__ void multiply(Sums& sums, uint64_t a, uint64_t b, bool accumulates) {
  float(&d)[kSumsPerThread] = sums.at;
  asm volatile(
      "{\n"
      ".reg .pred accumulates;\n"
      "setp.ne.b32 accumulates, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulates, 1, 1, %67, %67;\n"
      "}"
      : SUMS_OF_8(0), SUMS_OF_8(8), SUMS_OF_8(16), SUMS_OF_8(24), SUMS_OF_8(32), SUMS_OF_8(40),
        SUMS_OF_8(48), SUMS_OF_8(56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)), "n"(static_cast<int>(kColumns)));
}

#undef SUMS_OF_8

// --- Registers of a thread, for all warps of a warpgroup

template <int kCount>
__device__ __forceinline__ void give_registers_back() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace sm90
