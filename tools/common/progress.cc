#include "common/progress.h"

#include <unistd.h>

#include <cmath>
#include <iostream>

#include <common/text.h>

namespace tools {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kQuietStart(500);
constexpr milliseconds kRedrawInterval(100);
constexpr milliseconds kLogInterval(10'000);

}  // namespace

ProgressLine::ProgressLine(const Console& console, std::string verb)
    : prefix_(console.tool() + ": " + verb),
      is_shown_(console.options().progress && !console.options().quiet),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      next_draw_(start_ + (is_terminal_ ? kQuietStart : kLogInterval)) {}

ProgressLine::~ProgressLine() {
  if (has_drawn_ && is_terminal_) std::cerr << "\r\033[K" << std::flush;
}

void ProgressLine::update(const ckpt::Progress& progress) {
  if (!is_shown_) return;
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + (is_terminal_ ? kRedrawInterval : kLogInterval);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = text(progress, seconds);
  if (is_terminal_) {
    std::cerr << '\r' << line << "\033[K" << std::flush;
  } else {
    std::cerr << line << std::endl;
  }
  has_drawn_ = true;
}

std::string ProgressLine::text(const ckpt::Progress& progress, double seconds) const {
  const double done = static_cast<double>(progress.done_bytes);
  const double total = static_cast<double>(progress.total_bytes);
  const double rate = done / seconds;
  std::string line = prefix_ + "  ";
  if (total > 0) line += std::to_string(static_cast<int>(100 * done / total)) + "%  ";
  line += size_text(progress.done_bytes) + " of " + size_text(progress.total_bytes) + "  " +
          size_text(static_cast<uint64_t>(rate)) + "/s";
  if (rate > 0 && done < total) {
    line += "  " + std::to_string(std::lround((total - done) / rate)) + " s left";
  }
  return line;
}

ckpt::ExecuteOptions make_execute_options(const Console& console, ProgressLine& line) {
  ckpt::ExecuteOptions options;
  options.threads = console.options().threads;
  options.on_progress = [&line](const ckpt::Progress& progress) { line.update(progress); };
  return options;
}

}  // namespace tools
