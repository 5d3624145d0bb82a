#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

namespace tools {

// The line that stands at the end of stderr's terminal while work goes on, drawn over and over in
// place. Whoever prints wipes it first. From any thread.
class StatusLine {
 public:
  ~StatusLine() { wipe(); }

  // `text` is narrower than the terminal.
  void draw(std::string_view text);
  void wipe();
  // Wiped, and drawn no more: the process is about to end, and waits for nobody.
  void close();

 private:
  std::mutex mutex_;
  bool stands_ = false;
  std::atomic<bool> is_closed_ = false;
};

}  // namespace tools
