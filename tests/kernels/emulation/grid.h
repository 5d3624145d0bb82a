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

// What works beside a block's threads: loads and products that a thread begins and others wait for.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual void begin_block() = 0;
  // Something that is on its way arrives; false: nothing is. Called when no thread can go on, which
  // is as late as can be, and, where threads take turns by chance, now and then before.
  virtual bool deliver() = 0;
  // Null, or what is wrong with a block that ends now.
  virtual const char* end_block() = 0;
};
// Of all launches that follow; null: none.
void set_engine(Engine* engine);

// Throws std::logic_error for what hangs or is undefined on a GPU: threads that wait at different
// barriers or end while others wait for them, accesses that are not aligned.
void run_grid(Index blocks, Index threads, const std::function<void()>& body);

// What the intrinsics are made of; called by a running thread only.
void wait_for_block(const std::source_location& place);
// For so many threads of the block at the barrier of this number, 1 to 15.
void wait_for_some(unsigned barrier, unsigned count, const std::source_location& place);
// Until somebody calls note_change(): for a thread that looks at a condition again then.
void wait_for_change(const std::source_location& place);
void note_change();
// All 32 lanes of a warp show each other their bits; what lane `lane` has shown last.
void show_to_warp(uint64_t bits, const std::source_location& place);
uint64_t shown_by(unsigned lane);
void check_aligned(const void* address, unsigned bytes);
[[noreturn]] void fail_in_thread(const char* problem);

}  // namespace emulation

// The built-in variables of the running thread.
extern emulation::Index threadIdx, blockIdx, blockDim, gridDim;
