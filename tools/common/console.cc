#include "common/console.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include <ckpt/error.h>
#include <common/report_error.h>
#include <common/text.h>

namespace tools {

// Waits for signals in a thread of its own: what they ask for is not allowed in a signal handler.
class Console::SignalWatch {
 public:
  SignalWatch() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGXCPU, SIGUSR1, SIGUSR2})
      sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, &previous_);
    thread_ = std::thread([this] { wait(); });
  }
  ~SignalWatch() {
    ended_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR2);  // wakes sigwait()
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }

  std::stop_token token() const { return source_.get_token(); }
  int signal() const { return signal_; }
  void on_status_request(std::function<void()> print_status) {
    const std::scoped_lock lock(mutex_);
    print_status_ = std::move(print_status);
  }
  // Called for a signal that has arrived already, too. Empty: a stop is asked for instead.
  void on_stop(std::function<void(int signal)> end) {
    const std::scoped_lock lock(mutex_);
    end_ = std::move(end);
    if (end_ && signal_ != 0) end_(signal_);
  }

 private:
  void show_status() {
    const std::scoped_lock lock(mutex_);
    if (print_status_) print_status_();
  }

  void stop(int signal) {
    if (signal_ != 0) _exit(128 + signal);
    signal_ = signal;
    {
      const std::scoped_lock lock(mutex_);
      if (end_) end_(signal);
    }
    source_.request_stop();
  }

  void wait() {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && !ended_) {
      if (signal == SIGUSR1) show_status();
      if (signal == SIGUSR1 || signal == SIGUSR2) continue;
      if (signal == SIGXCPU && signal_ == SIGXCPU) continue;  // comes every second
      stop(signal);
    }
  }

  sigset_t signals_ = {};
  sigset_t previous_ = {};
  std::atomic<bool> ended_ = false;
  std::atomic<int> signal_ = 0;
  std::stop_source source_;
  std::mutex mutex_;  // held while one of these runs
  std::function<void()> print_status_;
  std::function<void(int)> end_;
  std::thread thread_;
};

namespace {

// no-color.org: set and not empty means no colour, whatever the value.
bool shows_color(ColorMode mode) {
  if (mode != ColorMode::Auto) return mode == ColorMode::Always;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return !is_dumb && isatty(STDOUT_FILENO) == 1;
}

const char* escape_code(Paint paint) {
  switch (paint) {
    case Paint::Plain: return "";
    case Paint::Bold: return "\033[1m";
    case Paint::Dim: return "\033[2m";
    case Paint::Red: return "\033[31m";
    case Paint::Green: return "\033[32m";
    case Paint::Yellow: return "\033[33m";
    case Paint::Cyan: return "\033[36m";
  }
  return "";
}

}  // namespace

Console::Console(std::string tool, CommonOptions options)
    : Console(std::move(tool), options, Screen::of(STDOUT_FILENO)) {}

Console::Console(std::string tool, CommonOptions options, Screen screen)
    : tool_(std::move(tool)),
      options_(options),
      screen_(screen),
      has_color_(shows_color(options.color)) {}

Console::~Console() = default;

std::ostream& Console::out() { return std::cout; }

void Console::print_text(std::string_view text) { out() << fitted(text, screen_) << '\n'; }

void Console::warn(std::string_view text) { print_message("warning: " + std::string(text)); }

void Console::note(std::string_view text) { print_message(std::string(text)); }

void Console::print_message(const std::string& text) {
  if (!options_.quiet) {
    std::cerr << fitted(tool_ + ": " + text, Screen::of(STDERR_FILENO)) << '\n';
  }
}

std::string Console::paint(Paint paint, std::string_view text) const {
  if (!has_color_ || paint == Paint::Plain) return std::string(text);
  return escape_code(paint) + std::string(text) + "\033[0m";
}

std::stop_token Console::stop_token() {
  if (!watch_) watch_ = std::make_unique<SignalWatch>();
  return watch_->token();
}

void Console::on_status_request(std::function<void()> print_status) {
  if (!watch_) watch_ = std::make_unique<SignalWatch>();
  watch_->on_status_request(std::move(print_status));
}

void Console::end_at_once_when_stopped(bool at_once) {
  if (!watch_) watch_ = std::make_unique<SignalWatch>();
  if (!at_once) return watch_->on_stop({});
  watch_->on_stop([this](int signal) {
    const ckpt::Error cancelled(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    const Failure stopped =
        stopped_by(signal, describe_failure(std::make_exception_ptr(cancelled)));
    report_failure(tool_, stopped, options_.json);
    _exit(stopped.exit_code);
  });
}

int Console::stop_signal() const { return watch_ ? watch_->signal() : 0; }

}  // namespace tools
