// Loaded before the libraries of a program: each look at the steady clock finds it a second later,
// so that work of milliseconds shows its progress.
#include <time.h>

#include <atomic>

#pragma GCC visibility push(default)
extern "C" int clock_gettime(clockid_t, timespec* now) noexcept {
  static std::atomic<long> seconds = 1'000'000;
  *now = {seconds += 1, 0};
  return 0;
}
