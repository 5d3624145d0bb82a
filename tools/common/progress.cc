#include "common/progress.h"

#include <unistd.h>

#include <cmath>
#include <iostream>
#include <utility>

#include <common/text.h>

namespace tools {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kQuietStart(500);
constexpr milliseconds kRedrawInterval(100);
constexpr milliseconds kLogInterval(10'000);
constexpr size_t kDoneBytes = 1, kRate = 2, kTimeLeft = 3;  // of ProgressLine::parts()

}  // namespace

ProgressLine::ProgressLine(Console& console, std::string verb)
    : ProgressLine(console, std::move(verb), {isatty(STDERR_FILENO) == 1}) {}

ProgressLine::ProgressLine(Console& console, std::string verb, Surroundings surroundings)
    : console_(console),
      verb_(std::move(verb)),
      surroundings_(std::move(surroundings)),
      is_shown_(console.options().progress && !console.options().quiet),
      start_(surroundings_.now()),
      next_draw_(start_ + (surroundings_.is_terminal ? kQuietStart : kLogInterval)) {
  console_.on_status_request([this] { print_status(); });
}

ProgressLine::~ProgressLine() {
  console_.on_status_request({});
  console_.status_line().wipe();
}

size_t ProgressLine::width_of_stderr() { return Screen::of(STDERR_FILENO).width.value_or(80); }

void ProgressLine::update(const ckpt::Progress& progress) {
  const std::scoped_lock lock(mutex_);
  const Clock::time_point now = surroundings_.now();
  const bool is_other_work = progress.step != last_.step ||
                             progress.total_bytes != last_.total_bytes ||
                             progress.done_bytes < last_.done_bytes;
  if (is_other_work && last_.total_bytes != 0) start_ = now;
  last_ = progress;
  if (Host* const host = console_.host()) {
    host->on_progress(progress.step.empty() ? verb_ : progress.step, progress);
  }
  if (!is_shown_ || now < next_draw_) return;
  next_draw_ = now + (surroundings_.is_terminal ? kRedrawInterval : kLogInterval);
  if (surroundings_.is_terminal) {
    console_.status_line().draw(text(now));
  } else {
    std::cerr << text(now) << std::endl;
  }
}

void ProgressLine::print_status() {
  if (console_.options().quiet) return;
  const std::scoped_lock lock(mutex_);
  console_.status_line().wipe();
  std::cerr << text(surroundings_.now()) << std::endl;
}

// As much as a terminal has room for, and one column less: the last one belongs to the cursor.
std::string ProgressLine::text(Clock::time_point now) const {
  std::vector<std::string> parts = this->parts(now);
  const size_t width_max = surroundings_.is_terminal ? surroundings_.width() - 1 : SIZE_MAX;
  // In the order of their worth: what and how far, the time left, the bytes, the rate.
  const auto line = [&] { return joined(parts, ""); };
  for (const size_t least : {kRate, kDoneBytes, kTimeLeft}) {
    if (display_width(line()) > width_max && least < parts.size()) parts[least].clear();
  }
  return shortened(line(), width_max);
}

std::vector<std::string> ProgressLine::parts(Clock::time_point now) const {
  const std::string what =
      console_.tool() + ": " + (last_.step.empty() ? verb_ : std::string(last_.step));
  if (last_.total_bytes == 0) return {what + "  not started yet"};
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double done = static_cast<double>(last_.done_bytes);
  const double total = static_cast<double>(last_.total_bytes);
  const double rate = seconds > 0 ? done / seconds : 0;
  const bool is_underway = rate > 0 && done < total;
  return {what + "  " + std::to_string(static_cast<int>(100 * done / total)) + "%",
          "  " + size_text(last_.done_bytes) + " of " + size_text(last_.total_bytes),
          "  " + size_text(static_cast<uint64_t>(rate)) + "/s",
          is_underway ? "  " + std::to_string(std::lround((total - done) / rate)) + " s left" : ""};
}

ckpt::ExecuteOptions make_execute_options(Console& console, ProgressLine& line) {
  ckpt::ExecuteOptions options;
  options.threads = console.options().threads;
  options.on_progress = [&line](const ckpt::Progress& progress) { line.update(progress); };
  options.stop = console.stop_token();
  return options;
}

}  // namespace tools
