#include "common/progress.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <iostream>
#include <sstream>
#include <thread>

#include "common/console.h"

namespace {

// Text that one thread writes and another looks at.
class SharedText : public std::stringbuf {
 public:
  SharedText() : before_(std::cerr.rdbuf(this)) {}
  ~SharedText() override { std::cerr.rdbuf(before_); }

  int sync() override {
    const std::scoped_lock lock(mutex_);
    shown_ = str();
    return 0;
  }
  std::string shown() {
    const std::scoped_lock lock(mutex_);
    return shown_;
  }

 private:
  std::streambuf* before_;
  std::mutex mutex_;
  std::string shown_;
};

// What a signal makes the progress line print; waits for it.
std::string status_of(tools::CommonOptions options, ckpt::Progress progress) {
  SharedText text;
  tools::Console console("tool", options);
  tools::ProgressLine line(console, "writing");
  line.update(progress);
  kill(getpid(), SIGUSR1);
  for (int round = 0; round < 500 && text.shown().empty(); ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return text.shown();
}

using std::chrono::seconds;

// What a line prints while somebody else holds the clock.
class Watched {
 public:
  Watched(tools::CommonOptions options, bool is_terminal, size_t width = 80)
      : console_("tool", options),
        line_(console_, "writing",
              {is_terminal, [this] { return now_; }, [width] { return width; }}) {}

  tools::Console& console() { return console_; }

  // The text since the last call.
  std::string at(seconds time, ckpt::Progress progress) {
    now_ = tools::ProgressLine::Clock::time_point(time);
    line_.update(progress);
    const std::string all = text_.str();
    std::string added = all.substr(seen_);
    seen_ = all.size();
    return added;
  }

 private:
  tools::ProgressLine::Clock::time_point now_;
  SharedText text_;
  size_t seen_ = 0;
  tools::Console console_;
  tools::ProgressLine line_;
};

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

BOOST_AUTO_TEST_SUITE(progress)

BOOST_AUTO_TEST_CASE(a_plain_line_every_ten_seconds_has_bytes_rate_and_time_left) {
  Watched line({}, false);
  BOOST_TEST(line.at(seconds(9), {90 * kMiB, 400 * kMiB}).empty());
  BOOST_TEST(line.at(seconds(10), {100 * kMiB, 400 * kMiB}) ==
             "tool: writing  25%  100.0 MiB of 400.0 MiB  10.0 MiB/s  30 s left\n");
  BOOST_TEST(line.at(seconds(19), {200 * kMiB, 400 * kMiB}).empty());
  BOOST_TEST(line.at(seconds(20), {400 * kMiB, 400 * kMiB}) ==
             "tool: writing  100%  400.0 MiB of 400.0 MiB  20.0 MiB/s\n");
}

BOOST_AUTO_TEST_CASE(a_terminals_line_is_redrawn_and_nothing_short_is_shown) {
  Watched line({}, true);
  BOOST_TEST(line.at(seconds(0), {1, 4}).empty());
  const std::string text = line.at(seconds(1), {2, 4});
  BOOST_TEST(text.starts_with("\rtool: writing  50%"), text);
  BOOST_TEST(text.find('\n') == text.npos);
}

BOOST_AUTO_TEST_CASE(a_narrow_terminal_gets_what_it_has_room_for) {
  const auto shown = [](size_t width) {
    Watched line({}, true, width);
    return line.at(seconds(10), {100 * kMiB, 400 * kMiB});
  };
  BOOST_TEST(shown(66) ==
             "\rtool: writing  25%  100.0 MiB of 400.0 MiB  10.0 MiB/s  30 s left\033[K");
  BOOST_TEST(shown(65) == "\rtool: writing  25%  100.0 MiB of 400.0 MiB  30 s left\033[K");
  BOOST_TEST(shown(40) == "\rtool: writing  25%  30 s left\033[K");
  BOOST_TEST(shown(20) == "\rtool: writing  25%\033[K");
}

BOOST_AUTO_TEST_CASE(whoever_prints_wipes_the_line_first) {
  Watched line({}, true);
  line.at(seconds(1), {2, 4});
  line.console().out();
  BOOST_TEST(line.at(seconds(1), {2, 4}) == "\r\033[K");
  line.at(seconds(2), {3, 4});
  line.console().warn("careful");
  BOOST_TEST(line.at(seconds(2), {3, 4}) == "\r\033[Ktool: warning: careful\n");
}

BOOST_AUTO_TEST_CASE(of_several_processes_on_one_terminal_one_draws) {
  tools::Console console("tool", {});
  SharedText text;
  for (const bool is_terminal : {false, true}) {
    auto now = tools::ProgressLine::Clock::time_point(seconds(0));
    tools::ProgressLine line(console, "writing", {is_terminal, [&] { return now; }});
    line.leave_terminal_if(true);
    now += seconds(60);
    line.update({1, 4});
    BOOST_TEST(text.str().empty() == is_terminal);
    text.str("");
  }
}

BOOST_AUTO_TEST_CASE(quiet_and_no_progress_print_nothing) {
  tools::CommonOptions quiet, without;
  quiet.quiet = true;
  without.progress = false;
  for (const tools::CommonOptions& options : {quiet, without}) {
    for (const bool is_terminal : {false, true}) {
      Watched line(options, is_terminal);
      BOOST_TEST(line.at(seconds(60), {1, 2}).empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_step_after_the_work_has_its_own_name_and_rate) {
  Watched line({}, false);
  line.at(seconds(100), {400 * kMiB, 400 * kMiB});
  line.at(seconds(100), {0, 400 * kMiB, "reading back"});
  BOOST_TEST(line.at(seconds(110), {200 * kMiB, 400 * kMiB, "reading back"}) ==
             "tool: reading back  50%  200.0 MiB of 400.0 MiB  20.0 MiB/s  10 s left\n");
}

BOOST_AUTO_TEST_CASE(sigusr1_prints_one_line_with_bytes_and_rate) {
  const std::string text = status_of({}, {256 << 20, 1024 << 20});
  BOOST_TEST(text.starts_with("tool: writing  25%  256.0 MiB of 1.0 GiB  "), text);
  BOOST_TEST(text.ends_with(" s left\n"), text);
}

BOOST_AUTO_TEST_CASE(sigusr1_before_the_first_byte_says_so) {
  BOOST_TEST(status_of({}, {}) == "tool: writing  not started yet\n");
}

BOOST_AUTO_TEST_CASE(a_status_that_is_asked_for_is_shown_under_no_progress) {
  tools::CommonOptions options;
  options.progress = false;
  BOOST_TEST(!status_of(options, {1, 2}).empty());
}

BOOST_AUTO_TEST_SUITE_END()
