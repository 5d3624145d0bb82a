#include "work/memory_budget.h"

#include <algorithm>

#include <ckpt/error.h>
#include <ckpt/run_jobs.h>

#include "io/process_memory.h"

namespace ckpt {

namespace {

constexpr uint64_t kWindowBytesMax = 4 << 20;  // longer ones make nothing faster
constexpr uint64_t kWindowBytesMin = 64 << 10;
// Some wait for the disk while others copy and sum up: fewer threads leave the disk idle.
constexpr unsigned kThreadsMin = 4;
constexpr uint64_t kThreadBytes = 256 << 10;  // stack, allocator: measured, rounded up

uint64_t left_after(const ExecuteOptions& options, uint64_t held_bytes) {
  return options.process_bytes_max - std::min(options.process_bytes_max, held_bytes);
}

uint64_t bytes_for_buffers(const ExecuteOptions& options, uint64_t bookkeeping_bytes) {
  if (options.process_bytes_max == 0) return options.memory_bytes_max;
  const uint64_t held_bytes = resident_bytes() + bookkeeping_bytes;
  const uint64_t left_bytes = left_after(options, held_bytes);
  const uint64_t least_bytes = 2 * kWindowBytesMin + kThreadBytes;
  if (left_bytes < least_bytes) {
    throw Error(ErrorCode::InvalidArgument, {},
                "metadata and program take " + std::to_string(held_bytes) +
                    " bytes of memory, which leaves too little of the " +
                    std::to_string(options.process_bytes_max) + " bytes allowed",
                "at least " + std::to_string(held_bytes + least_bytes) + " bytes are needed");
  }
  return std::min(options.memory_bytes_max, left_bytes);
}

// What windows of all readers of the same rows need of the source, and as much again, since those
// that are side by side do not start in the same row. Less helps less; half is for the windows.
uint64_t bytes_to_share(uint64_t bytes, uint64_t window_bytes, size_t readers) {
  return readers == 1 ? 0 : std::min(2 * window_bytes * readers, bytes / 2);
}

}  // namespace

uint64_t bookkeeping_bytes(const Plan& plan, const std::vector<Piece>& pieces) {
  constexpr uint64_t kBytesPerCopy = 256;  // measured, rounded up
  uint64_t copies = 0;
  const auto add = [&](size_t first, size_t end) {
    for (size_t r = first; r < end; ++r) {
      copies += std::max<size_t>(1, plan.records[r].copies.size());
    }
  };
  if (pieces.empty()) add(0, plan.records.size());
  for (const Piece& piece : pieces) add(piece.first_record, piece.end_record);
  return copies * kBytesPerCopy;
}

MemoryBudget make_memory_budget(const ExecuteOptions& options, uint64_t bookkeeping_bytes,
                                size_t readers) {
  const uint64_t all_bytes = bytes_for_buffers(options, bookkeeping_bytes);
  const uint64_t shared_bytes = bytes_to_share(all_bytes, kWindowBytesMax, readers);
  const uint64_t bytes = all_bytes - shared_bytes;
  const uint64_t most_threads = std::max<uint64_t>(1, bytes / (2 * kWindowBytesMin + kThreadBytes));
  const unsigned wanted =
      options.threads != 0 ? options.threads : std::max(kThreadsMin, thread_count(0));
  const auto threads = static_cast<unsigned>(std::min<uint64_t>(wanted, most_threads));
  uint64_t share = (bytes / threads - std::min(bytes / threads, kThreadBytes)) / 2;
  if (shared_bytes != 0) share = std::min(share, shared_bytes / (2 * readers));
  return {threads,
          std::clamp(share / kWindowBytesMin * kWindowBytesMin, kWindowBytesMin, kWindowBytesMax),
          shared_bytes};
}

ReadingBudget make_reading_budget(const ExecuteOptions& options) {
  uint64_t bytes = options.memory_bytes_max;
  if (options.process_bytes_max != 0) {
    bytes = std::min(bytes, left_after(options, resident_bytes()));
  }
  const uint64_t most_threads = std::max<uint64_t>(1, bytes / kWindowBytesMin);
  const auto threads =
      static_cast<unsigned>(std::min<uint64_t>(thread_count(options.threads), most_threads));
  const uint64_t share = bytes / threads / kWindowBytesMin * kWindowBytesMin;
  return {threads, std::clamp(share, kWindowBytesMin, kWindowBytesMax)};
}

uint64_t expected_peak_bytes(const MemoryBudget& budget, uint64_t bookkeeping_bytes) {
  const uint64_t held_bytes = resident_bytes();
  if (held_bytes == 0) return 0;
  return held_bytes + bookkeeping_bytes + budget.count_bytes() + budget.threads * kThreadBytes;
}

}  // namespace ckpt
