#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include <ckpt/execute.h>
#include <common/console.h>

namespace tools {

// "TOOL: hashing  41%  1.2 GiB of 2.9 GiB  812.4 MiB/s  2 s left" on stderr: on a terminal redrawn
// at most ten times a second and wiped at the end, else a line every ten seconds. Nothing in the
// first half second, under --quiet or --no-progress. update() may be called from any thread.
class ProgressLine {
 public:
  ProgressLine(const Console& console, std::string verb);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const ckpt::Progress& progress);

 private:
  using Clock = std::chrono::steady_clock;
  std::string text(const ckpt::Progress& progress, double seconds) const;

  std::string prefix_;
  bool is_shown_;
  bool is_terminal_;
  bool has_drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
  std::mutex mutex_;
};

// Threads and progress of a command, for libckpt. `line` must outlive the work.
ckpt::ExecuteOptions make_execute_options(const Console& console, ProgressLine& line);

}  // namespace tools
