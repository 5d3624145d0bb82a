#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>

#include <ckpt/execute.h>

namespace ckpt {

// Counts bytes for ExecuteOptions::on_progress and ends the work after a stop. Thread-safe.
class WorkMeter {
 public:
  WorkMeter(const ExecuteOptions& options, uint64_t total_bytes)
      : options_(options), progress_{0, total_bytes} {}
  // Throws Error(IoFailure, "cancelled") once a stop was requested.
  void advance(uint64_t bytes);

 private:
  const ExecuteOptions& options_;
  std::mutex mutex_;
  Progress progress_;
};

// run_jobs() with a buffer per thread: the same number of bytes for all, a multiple of 4096, all of
// them together at most options.memory_bytes_max (but never under 4096 bytes each).
void run_with_slabs(size_t job_count, const ExecuteOptions& options,
                    const std::function<void(size_t job, std::span<std::byte> slab)>& work);

}  // namespace ckpt
