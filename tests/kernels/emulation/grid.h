#pragma once

#include <cstdint>
#include <functional>
#include <source_location>

// Runs the threads of a CUDA grid on the CPU, one block after the other, each thread a fiber. A
// thread runs until it waits for others (a barrier, an exchange within its warp) or ends, and the
// thread with the highest rank that can go on is next. So a barrier that is missing shows: what a
// thread of high rank reads, others have not written yet, and what a thread of low rank still has
// to read, others have overwritten by their next turn of a loop.
namespace emulation {

struct Index {
  unsigned x, y, z;
};

enum class Order : uint8_t {
  Forward,   // blocks and threads by their numbers
  Backward,  // the last first
  Shuffled,  // by chance
  Striped,   // by chance, warps as a whole
};

// Of all launches that follow; they draw their chances from `seed` one after the other.
void set_order(Order order, uint64_t seed);

// Throws std::logic_error for what hangs or is undefined on a GPU: threads that wait at different
// barriers or end while others wait for them, accesses that are not aligned.
void run_grid(Index blocks, Index threads, const std::function<void()>& body);

// What the intrinsics are made of; called by a running thread only.
void wait_for_block(const std::source_location& place);
// All 32 lanes of a warp show each other their bits; what lane `lane` has shown last.
void show_to_warp(uint64_t bits, const std::source_location& place);
uint64_t shown_by(unsigned lane);
void check_aligned(const void* address, unsigned bytes);
[[noreturn]] void fail_in_thread(const char* problem);

}  // namespace emulation

// The built-in variables of the running thread.
extern emulation::Index threadIdx, blockIdx, blockDim, gridDim;
