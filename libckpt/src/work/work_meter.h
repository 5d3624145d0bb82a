#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include <ckpt/execute.h>

namespace ckpt {

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

}  // namespace ckpt
