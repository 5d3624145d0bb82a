#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <common/console.h>

namespace tools {

// "TOOL: VERB  41%  1.2 GiB of 2.9 GiB  812.4 MiB/s  2 s left" on stderr: on a terminal the
// console's status line, drawn at most ten times a second and never wider than it (the rate goes
// first), else a line every ten seconds. Nothing in the first half second, under --quiet or
// --no-progress. SIGUSR1 prints the line once, but for --quiet. update() may be called from any
// thread. One at a time.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  static size_t width_of_stderr();
  struct Surroundings {
    bool is_terminal;  // stderr
    std::function<Clock::time_point()> now = Clock::now;
    std::function<size_t()> width = width_of_stderr;  // asked while is_terminal
  };

  ProgressLine(Console& console, std::string verb);
  ProgressLine(Console& console, std::string verb, Surroundings surroundings);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const ckpt::Progress& progress);
  // Of several processes that a launcher started on one terminal, one draws.
  void leave_terminal_if(bool is_another) {
    is_shown_ = is_shown_ && !(is_another && surroundings_.is_terminal);
  }

 private:
  void print_status();
  std::string text(Clock::time_point now) const;
  std::vector<std::string> parts(Clock::time_point now) const;

  Console& console_;
  std::string verb_;  // unless what is done is a step of its own: ckpt::Progress::step
  Surroundings surroundings_;
  bool is_shown_;
  Clock::time_point start_;  // of what the bytes are counted of
  Clock::time_point next_draw_;
  std::mutex mutex_;
  ckpt::Progress last_;
};

// Threads, progress and signals of a command, for libckpt. `line` must outlive the work.
ckpt::ExecuteOptions make_execute_options(Console& console, ProgressLine& line);

}  // namespace tools
