#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/staging.h>

namespace ckpt {

inline constexpr uint32_t kWorldSizeMax = 1 << 20;
// Throws InvalidArgument unless rank < world_size <= kWorldSizeMax.
void check_share(const Share& share);

// Which process takes which piece of work, by index: the largest pieces first, each to the process
// that has the fewest bytes so far. Pure: the same on every process.
std::vector<uint32_t> deal_by_bytes(std::span<const uint64_t> piece_bytes, uint32_t process_count);

// Counts bytes for ExecuteOptions::on_progress and ends the work after a stop. Thread-safe.
class WorkMeter {
 public:
  // `options` and `step` (see Progress) must outlive it.
  WorkMeter(const ExecuteOptions& options, uint64_t total_bytes, std::string_view step = {})
      : options_(options), progress_{0, total_bytes, step} {}
  // Throws Error(IoFailure, "cancelled") once a stop was requested.
  void stop_if_requested() const;
  // The same; otherwise counts these bytes.
  void advance(uint64_t bytes);
  // No other thread may be at work.
  uint64_t done_bytes() const { return progress_.done_bytes; }

 private:
  const ExecuteOptions& options_;
  std::mutex mutex_;
  Progress progress_;
};

// How much memory the buffers of a run take. Each worker has one for the window that it makes, and
// one of the same length to read through.
struct MemoryBudget {
  unsigned threads = 1;
  uint64_t window_bytes = 0;
  uint64_t shared_bytes = 0;  // for what several windows read
  uint64_t count_bytes() const { return 2 * threads * window_bytes + shared_bytes; }
};

// What a run notes down of its copies: the checker's note of a storage, the index of a copy.
// `pieces`: as ExecuteOptions::pieces.
uint64_t bookkeeping_bytes(const Plan& plan, const std::vector<Piece>& pieces);

// Throws InvalidArgument where options.process_bytes_max leaves too little. `bookkeeping_bytes`:
// what the run will note down beside its buffers; `readers`: how many windows at most read the same
// rows, each some columns of them.
MemoryBudget make_memory_budget(const ExecuteOptions& options, uint64_t bookkeeping_bytes = 0,
                                size_t readers = 1);

// Resident memory of this process at its peak, about; 0 where the system does not say.
uint64_t expected_peak_bytes(const MemoryBudget& budget, uint64_t bookkeeping_bytes);

// For reading alone: a buffer a thread, a multiple of 4096 bytes. Makes do with the least, and with
// fewer threads, where options.process_bytes_max leaves little.
struct ReadingBudget {
  unsigned threads = 1;
  uint64_t buffer_bytes = 0;
};
ReadingBudget make_reading_budget(const ExecuteOptions& options);

// run_jobs() with the buffers of make_reading_budget(): all of them together at most
// options.memory_bytes_max, but never under 4096 bytes each.
void run_with_slabs(size_t job_count, const ExecuteOptions& options,
                    const std::function<void(size_t job, std::span<std::byte> slab)>& work);

}  // namespace ckpt
