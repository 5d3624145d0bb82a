#include "work/workers.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <queue>
#include <string>
#include <system_error>
#include <thread>

#include <ckpt/error.h>
#include <ckpt/run_jobs.h>

#include "io/system_calls.h"

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
  const uint64_t least_bytes = 2 * std::max(options.window_bytes, kWindowBytesMin) + kThreadBytes;
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

class JobQueue {
 public:
  JobQueue(size_t job_count, const Job& run) : job_count_(job_count), run_(run) {}

  void work(unsigned worker) {
    size_t job = 0;
    while (take(job)) {
      try {
        run_(job, worker);
      } catch (...) {
        fail(job, std::current_exception());
      }
    }
  }

  // Jobs below a failed one have all been started, so the lowest failure is always seen.
  void fail(size_t job, std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (error_ && job > failed_job_) return;
    failed_job_ = job;
    error_ = std::move(error);
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool take(size_t& job) {
    const std::scoped_lock lock(mutex_);
    if (error_ || next_ == job_count_) return false;
    job = next_++;
    return true;
  }

  const size_t job_count_;
  const Job& run_;
  std::mutex mutex_;
  size_t next_ = 0;
  size_t failed_job_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::vector<uint32_t> deal_by_bytes(std::span<const uint64_t> piece_bytes, uint32_t process_count) {
  std::vector<uint32_t> by_size(piece_bytes.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::ranges::stable_sort(by_size, std::ranges::greater(),
                           [&](uint32_t piece) { return piece_bytes[piece]; });
  struct Process {
    uint64_t count_bytes;
    uint32_t rank;
    auto operator<=>(const Process&) const = default;
  };
  std::priority_queue<Process, std::vector<Process>, std::greater<>> least;
  for (uint32_t rank = 0; rank < process_count; ++rank) least.push({0, rank});
  std::vector<uint32_t> owner(piece_bytes.size());
  for (const uint32_t piece : by_size) {
    Process process = least.top();
    least.pop();
    owner[piece] = process.rank;
    process.count_bytes += piece_bytes[piece];
    least.push(process);
  }
  return owner;
}

void check_share(const Share& share) {
  if (share.rank < share.world_size && share.world_size <= kWorldSizeMax) return;
  throw Error(ErrorCode::InvalidArgument, {},
              "rank " + std::to_string(share.rank) + " is not below the number of processes, " +
                  std::to_string(share.world_size));
}

void WorkMeter::stop_if_requested() const {
  if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
}

void WorkMeter::advance(uint64_t bytes) {
  stop_if_requested();
  const std::scoped_lock lock(mutex_);
  progress_.done_bytes += bytes;
  progress_.total_bytes = std::max(progress_.total_bytes, progress_.done_bytes);
  if (options_.on_progress) options_.on_progress(progress_);
}

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
  const uint64_t least = std::max(options.window_bytes, kWindowBytesMin);
  const uint64_t most = std::max(options.window_bytes, kWindowBytesMax);
  const uint64_t all_bytes = bytes_for_buffers(options, bookkeeping_bytes);
  const uint64_t shared_bytes = bytes_to_share(all_bytes, kWindowBytesMax, readers);
  const uint64_t bytes = all_bytes - shared_bytes;
  const uint64_t most_threads = std::max<uint64_t>(1, bytes / (2 * least + kThreadBytes));
  const unsigned wanted =
      options.threads != 0 ? options.threads : std::max(kThreadsMin, thread_count(0));
  const auto threads = static_cast<unsigned>(std::min<uint64_t>(wanted, most_threads));
  uint64_t share = (bytes / threads - std::min(bytes / threads, kThreadBytes)) / 2;
  if (shared_bytes != 0) share = std::min(share, shared_bytes / (2 * readers));
  return {threads, std::clamp(share / kWindowBytesMin * kWindowBytesMin, least, most),
          shared_bytes};
}

ReadingBudget make_reading_budget(const ExecuteOptions& options) {
  uint64_t bytes = options.memory_bytes_max, threads = thread_count(options.threads);
  uint64_t unit_bytes = 4096;
  if (options.process_bytes_max != 0) {
    bytes = std::min(bytes, left_after(options, resident_bytes()));
    unit_bytes = kWindowBytesMin;
    threads = std::min(threads, std::max<uint64_t>(1, bytes / unit_bytes));
  }
  const uint64_t share = bytes / threads / unit_bytes * unit_bytes;
  return {static_cast<unsigned>(threads), std::clamp(share, unit_bytes, kWindowBytesMax)};
}

uint64_t expected_peak_bytes(const MemoryBudget& budget, uint64_t bookkeeping_bytes) {
  const uint64_t held_bytes = resident_bytes();
  if (held_bytes == 0) return 0;
  return held_bytes + bookkeeping_bytes + budget.count_bytes() + budget.threads * kThreadBytes;
}

void run_with_slabs(size_t job_count, const ExecuteOptions& options,
                    const std::function<void(size_t job, std::span<std::byte> slab)>& work) {
  const auto [threads, bytes] = make_reading_budget(options);
  std::vector<std::vector<std::byte>> slabs(threads);
  run_jobs(job_count, threads, [&, bytes = bytes](size_t job, unsigned worker) {
    slabs[worker].resize(bytes);  // once per thread, and only by threads that get a job
    work(job, slabs[worker]);
  });
}

unsigned thread_count(unsigned requested) {
  return requested != 0 ? requested : std::max(1u, std::thread::hardware_concurrency());
}

void run_jobs(size_t job_count, unsigned threads, const Job& run) {
  JobQueue queue(job_count, run);
  const auto workers = static_cast<unsigned>(std::min<size_t>(threads, job_count));
  {
    std::vector<std::jthread> others;  // joined at the end of this block
    try {
      for (unsigned worker = 1; worker < workers; ++worker) {
        others.emplace_back([&queue, worker] { queue.work(worker); });
      }
    } catch (const std::system_error&) {  // those that have started do all
    }
    queue.work(0);
  }
  queue.rethrow();
}

}  // namespace ckpt
