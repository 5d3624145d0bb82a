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

}  // namespace

BOOST_AUTO_TEST_SUITE(progress)

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
