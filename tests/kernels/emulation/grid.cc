// Runs the threads of a CUDA grid on the CPU.
#include "kernels/emulation/grid.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/emulation/fiber.h"

emulation::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kBarriers = 16;
constexpr unsigned kEarly = 64;  // by chance: one in so many turns

Order chosen_order = Order::Forward;
std::mt19937_64 chance;
Engine* engine = nullptr;

std::vector<unsigned> shuffled(unsigned count) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  std::shuffle(numbers.begin(), numbers.end(), chance);
  return numbers;
}

// Numbers 0 .. count - 1 in the chosen order.
std::vector<unsigned> in_order(unsigned count) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  if (chosen_order == Order::Backward) std::reverse(numbers.begin(), numbers.end());
  if (chosen_order == Order::Shuffled) return shuffled(count);
  if (chosen_order == Order::Striped) {
    std::vector<unsigned> places;
    for (const unsigned warp : shuffled((count + kWarp - 1) / kWarp)) {
      for (unsigned i = warp * kWarp; i < std::min(count, (warp + 1) * kWarp); ++i) {
        places.push_back(i);
      }
    }
    return places;
  }
  return numbers;
}

enum class Waits : uint8_t { No, ForBlock, ForWarp, ForSome, ForChange, Ended };

struct Thread {
  std::unique_ptr<Fiber> fiber = std::make_unique<Fiber>();
  Waits waits = Waits::No;
  unsigned line = 0;     // where it waits
  unsigned barrier = 0;  // for some others
  unsigned others = 0;   // that come there, with it
  bool turn = false;     // which of two places its warp exchanges in
  uint64_t bits[2] = {0, 0};
};

// The block that is running. Its fibers are kept for the next one.
class Block {
 public:
  void run(unsigned count, const std::function<void()>& body);
  void wait(Waits what, unsigned line);
  void wait_for_some(unsigned barrier, unsigned count, unsigned line);
  void note_change();
  void show(uint64_t bits, unsigned line);
  uint64_t shown_by(unsigned lane) const;
  [[noreturn]] void fail(const char* problem);

 private:
  void resume(unsigned number);
  void release_warp(unsigned number);
  void release_block();
  void release_some(unsigned number);
  unsigned next_thread();
  bool all_wait(unsigned first, unsigned end, Waits what) const;
  void release(unsigned first, unsigned end);
  void set_ready(unsigned number) { ready_[rank_[number] / 64] |= bit_of(rank_[number]); }
  static uint64_t bit_of(unsigned rank) { return uint64_t{1} << rank % 64; }
  [[noreturn]] void complain() const;

  std::vector<Thread> threads_;
  std::vector<unsigned> by_rank_, rank_;
  uint64_t ready_[16] = {};
  std::vector<unsigned> at_barrier_[kBarriers];  // threads that wait there
  unsigned count_ = 0, running_ = 0, waiting_ = 0, left_ = 0;
  const char* problem_ = nullptr;
};

void Block::run(unsigned count, const std::function<void()>& body) {
  if (threads_.size() < count) threads_.resize(count);
  count_ = left_ = count;
  waiting_ = 0;
  problem_ = nullptr;
  std::fill(ready_, std::end(ready_), 0);
  for (auto& threads : at_barrier_) threads.clear();
  if (engine != nullptr) engine->begin_block();
  by_rank_ = in_order(count);
  rank_.resize(count);
  for (unsigned rank = 0; rank < count; ++rank) rank_[by_rank_[rank]] = rank;
  for (unsigned i = 0; i < count; ++i) {
    threads_[i].fiber->start(body);
    threads_[i].waits = Waits::No;
    threads_[i].turn = false;
    set_ready(i);
  }
  while (left_ > 0) resume(next_thread());
  if (const char* const problem = engine == nullptr ? nullptr : engine->end_block()) {
    throw std::logic_error(problem);
  }
}

// The one of the highest rank that can go on.
unsigned Block::next_thread() {
  if (engine != nullptr && chosen_order == Order::Shuffled && chance() % kEarly == 0) {
    engine->deliver();
  }
  for (;;) {
    const auto* const word = std::find_if(ready_, std::end(ready_), [](uint64_t w) { return w; });
    if (word != std::end(ready_)) {
      const auto base = static_cast<unsigned>(word - ready_) * 64;
      return by_rank_[base + static_cast<unsigned>(__builtin_ctzll(*word))];
    }
    if (engine == nullptr || !engine->deliver()) complain();
  }
}

void Block::resume(unsigned number) {
  running_ = number;
  threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y,
               number / blockDim.x / blockDim.y};
  Thread& thread = threads_[number];
  const bool has_ended = thread.fiber->resume();
  ready_[rank_[number] / 64] &= ~bit_of(rank_[number]);
  if (problem_ != nullptr) throw std::logic_error(problem_);
  if (has_ended) {
    thread.waits = Waits::Ended;
    --left_;
  } else if (thread.waits == Waits::ForWarp) {
    release_warp(number);
  } else if (thread.waits == Waits::ForSome) {
    release_some(number);
  } else if (thread.waits == Waits::ForBlock && ++waiting_ == count_) {
    release_block();
  }
}

bool Block::all_wait(unsigned first, unsigned end, Waits what) const {
  return std::all_of(threads_.begin() + first, threads_.begin() + end, [&](const Thread& thread) {
    return thread.waits == what && thread.line == threads_[first].line;
  });
}

void Block::release(unsigned first, unsigned end) {
  for (unsigned i = first; i < end; ++i) {
    threads_[i].waits = Waits::No;
    set_ready(i);
  }
}

void Block::release_warp(unsigned number) {
  const unsigned first = number / kWarp * kWarp;
  if (first + kWarp > count_) {
    throw std::logic_error("an exchange within a warp that is not full");
  }
  if (all_wait(first, first + kWarp, Waits::ForWarp)) release(first, first + kWarp);
}

void Block::release_block() {
  if (!all_wait(0, count_, Waits::ForBlock)) complain();
  waiting_ = 0;
  release(0, count_);
}

void Block::release_some(unsigned number) {
  const Thread& thread = threads_[number];
  std::vector<unsigned>& there = at_barrier_[thread.barrier];
  if (!there.empty() && threads_[there.front()].others != thread.others) {
    throw std::logic_error("threads count others differently at a barrier");
  }
  there.push_back(number);
  if (there.size() < thread.others) return;
  for (const unsigned other : there) release(other, other + 1);
  there.clear();
}

void Block::note_change() {
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i].waits == Waits::ForChange) release(i, i + 1);
  }
}

void Block::complain() const {
  std::string text = "threads wait for others that do not come:";
  for (const Waits what :
       {Waits::ForBlock, Waits::ForWarp, Waits::ForSome, Waits::ForChange, Waits::Ended}) {
    const auto begin = threads_.begin();
    const auto end = begin + count_;
    const auto first =
        std::find_if(begin, end, [&](const Thread& thread) { return thread.waits == what; });
    if (first == end) continue;
    text += " thread " + std::to_string(first - begin);
    text += what == Waits::Ended       ? " has ended,"
            : what == Waits::ForWarp   ? " waits for its warp in line "
            : what == Waits::ForChange ? " waits for a phase in line "
                                       : " waits at the barrier of line ";
    if (what != Waits::Ended) text += std::to_string(first->line) + ",";
  }
  text.back() = '.';
  throw std::logic_error(text);
}

void Block::wait(Waits what, unsigned line) {
  threads_[running_].waits = what;
  threads_[running_].line = line;
  threads_[running_].fiber->pause();
}

void Block::wait_for_some(unsigned barrier, unsigned count, unsigned line) {
  if (barrier == 0 || barrier >= kBarriers || count % kWarp != 0) fail("a barrier of some threads");
  threads_[running_].barrier = barrier;
  threads_[running_].others = count;
  wait(Waits::ForSome, line);
}

// A lane is at most one exchange ahead of the others, so two places take turns.
void Block::show(uint64_t bits, unsigned line) {
  Thread& thread = threads_[running_];
  thread.turn = !thread.turn;
  thread.bits[thread.turn] = bits;
  wait(Waits::ForWarp, line);
}

uint64_t Block::shown_by(unsigned lane) const {
  return threads_[running_ / kWarp * kWarp + lane].bits[threads_[running_].turn];
}

// Threads cannot throw across their stack's end: they never come back, and run() throws.
void Block::fail(const char* problem) {
  problem_ = problem;
  for (;;) threads_[running_].fiber->pause();
}

Block& block() {
  static Block running;
  return running;
}

unsigned count_of(Index i) { return i.x * i.y * i.z; }

}  // namespace

void set_order(Order order, uint64_t seed) {
  chosen_order = order;
  chance.seed(seed);
}

void run_grid(Index blocks, Index threads, const std::function<void()>& body) {
  gridDim = blocks;
  blockDim = threads;
  for (const unsigned number : in_order(count_of(blocks))) {
    blockIdx = {number % blocks.x, number / blocks.x % blocks.y, number / blocks.x / blocks.y};
    block().run(count_of(threads), body);
  }
}

void wait_for_block(const std::source_location& place) {
  block().wait(Waits::ForBlock, place.line());
}

void set_engine(Engine* chosen) { engine = chosen; }

void wait_for_some(unsigned barrier, unsigned count, const std::source_location& place) {
  block().wait_for_some(barrier, count, place.line());
}

void wait_for_change(const std::source_location& place) {
  block().wait(Waits::ForChange, place.line());
}

void note_change() { block().note_change(); }

void show_to_warp(uint64_t bits, const std::source_location& place) {
  block().show(bits, place.line());
}

uint64_t shown_by(unsigned lane) { return block().shown_by(lane); }

void check_aligned(const void* address, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  fail_in_thread("an access of several elements is not aligned");
}

void fail_in_thread(const char* problem) { block().fail(problem); }

}  // namespace emulation
