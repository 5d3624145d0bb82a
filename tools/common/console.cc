#include "common/console.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <common/json.h>
#include <common/text.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <CLI/Error.hpp>

#include <ckpt/error.h>
#include <ckpt/text.h>

namespace tools {
namespace {

constexpr size_t kWidthMin = 20;  // narrower ones break lines by themselves
constexpr size_t kScreenWidthMax = 10'000;
constexpr size_t kUsualWidth = 80;

std::optional<size_t> width_of_environment() {
  const std::string text = variable("COLUMNS").value_or("");
  const auto width = text.size() < 6 ? ckpt::number_in<size_t>(text) : std::nullopt;
  return width == 0U ? std::nullopt : width;
}

size_t width_of_terminal(int descriptor) {
  if (const auto width = width_of_environment()) return *width;
  winsize size = {};
  const bool is_known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? size.ws_col : kUsualWidth;
}

// The first of these that is set decides, as in POSIX; asked by name, since the locale may be one
// that this machine does not have.
bool locale_is_utf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto locale = variable(name);
    if (!locale) continue;
    std::ranges::transform(*locale, locale->begin(), [](unsigned char c) { return tolower(c); });
    return locale->find("utf-8") != std::string::npos || locale->find("utf8") != std::string::npos;
  }
  return false;
}

constexpr std::string_view kWipe = "\r\033[K";

// no-color.org: set and not empty means no colour, whatever the value.
bool shows_color(ColorMode mode) {
  if (mode != ColorMode::Auto) return mode == ColorMode::Always;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return !is_dumb && isatty(STDOUT_FILENO) == 1;
}

// By Paint.
constexpr const char* kEscapeCodes[] = {"",         "\033[1m",  "\033[2m", "\033[31m",
                                        "\033[32m", "\033[33m", "\033[36m"};

struct CodeRow {
  ckpt::ErrorCode code;
  int exit_code;
  const char* name;
};
constexpr CodeRow kCodes[] = {
    {ckpt::ErrorCode::InvalidArgument, 2, "usage"},
    {ckpt::ErrorCode::Corrupt, 3, "corrupt"},
    {ckpt::ErrorCode::Unsupported, 4, "unsupported"},
    {ckpt::ErrorCode::NotFound, 5, "not_found"},
    {ckpt::ErrorCode::AlreadyExists, 5, "already_exists"},
    {ckpt::ErrorCode::IoFailure, 5, "io"},
};

// CLI11 and the standard library quote arguments as they are: keep the message on one line.
std::string one_line(std::string text) {
  for (char& character : text) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7F) character = ' ';
  }
  return text;
}

Failure make_failure(int exit_code, const char* code, std::string problem) {
  Failure failure;
  failure.exit_code = exit_code;
  failure.code = code;
  failure.line = failure.problem = one_line(std::move(problem));
  return failure;
}

Failure from_bad_alloc() {
  Failure failure = make_failure(5, "out_of_memory", "out of memory");
  failure.hint = "fewer threads (-j N) need less memory; limits of the process are in `ulimit -a`";
  return failure;
}

// Thrown by what starts a thread.
Failure from_system_error(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) {
    return make_failure(5, "io", error.what());
  }
  Failure failure = make_failure(5, "io", "cannot start a thread: " + error.code().message());
  failure.hint = "fewer threads: -j N";
  return failure;
}

Failure from_error(const ckpt::Error& error) {
  Failure failure = make_failure(70, "internal", error.what());
  for (const CodeRow& row : kCodes) {
    if (row.code != error.code()) continue;
    failure.exit_code = row.exit_code;
    failure.code = row.name;
  }
  failure.hint = one_line(error.hint());
  failure.file = error.where().file;
  failure.key = error.where().key;
  failure.problem = error.problem();
  if (error.where().offset_bytes) {
    failure.offset_bytes = static_cast<long long>(*error.where().offset_bytes);
  }
  return failure;
}

nlohmann::json to_json(const Failure& failure) {
  nlohmann::json error = {{"code", failure.code},
                          {"exit_code", failure.exit_code},
                          {"message", json_text(failure.line)},
                          {"problem", json_text(failure.problem)}};
  if (!failure.hint.empty()) error["hint"] = json_text(failure.hint);
  if (!failure.file.empty()) error["file"] = json_text(failure.file);
  if (!failure.key.empty()) error["key"] = json_text(failure.key);
  if (failure.offset_bytes >= 0) error["offset_bytes"] = failure.offset_bytes;
  nlohmann::json document = json_document();
  document["error"] = std::move(error);
  return document;
}

// CLI11 says "--limit: 1 required UINT missing".
std::string without_type(const std::string& problem) {
  const size_t found = problem.find(": 1 required ");
  return found == problem.npos ? problem : problem.substr(0, found) + " needs a value";
}

}  // namespace

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number_variable(const char* name, int least, int most) {
  const std::string text = variable(name).value_or("");
  const auto value = text.size() < 9 ? ckpt::number_in<int>(text) : std::nullopt;
  if (!value || *value < least || *value > most) {
    refuse_usage(std::string("the environment variable ") + name + " is '" + ckpt::escaped(text) +
                 "', no number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *value;
}

Screen Screen::of(int descriptor) {
  Screen screen;
  screen.is_utf8 = locale_is_utf8();
  if (isatty(descriptor) == 1) {
    screen.width = std::clamp(width_of_terminal(descriptor), kWidthMin, kScreenWidthMax);
  }
  return screen;
}

std::string Screen::shown(std::string_view utf8) const {
  if (shows_all()) return std::string(utf8);
  std::string text;
  for (const char character : utf8) {
    const auto byte = static_cast<unsigned char>(character);
    text += byte < 0x80 ? std::string(1, character) : "\\x";
    if (byte >= 0x80) ckpt::append_hex(text, byte, 2);
  }
  return text;
}

std::string fitted(std::string_view text, const Screen& screen) {
  const std::string shown = screen.shown(text);
  return screen.width ? wrapped(shown, *screen.width) : shown;
}

void StatusLine::draw(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return;
  std::cout.flush();  // before the line, not over it
  std::cerr << '\r' << text << "\033[K" << std::flush;
  stands_ = true;
}

void StatusLine::wipe() {
  const std::scoped_lock lock(mutex_);
  if (stands_) std::cerr << kWipe << std::flush;
  stands_ = false;
}

void StatusLine::close() {
  is_closed_ = true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !stands_) return;
  std::cerr << kWipe << std::flush;
  stands_ = false;
}

// Waits for signals in a thread of its own: what they ask for is not allowed in a signal handler.
class Console::SignalWatch {
 public:
  explicit SignalWatch(StatusLine& status_line) : status_line_(status_line) {
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
    status_line_.close();
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

  StatusLine& status_line_;
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

Console::Console(std::string tool, CommonOptions options)
    : Console(std::move(tool), options, Screen::of(STDOUT_FILENO)) {}

Console::Console(std::string tool, CommonOptions options, Screen screen)
    : tool_(std::move(tool)),
      options_(options),
      screen_(screen),
      has_color_(shows_color(options.color)) {}

Console::Console(std::string tool, CommonOptions options, Host& host)
    : tool_(std::move(tool)), options_(options), has_color_(false), host_(&host) {}

Console::~Console() = default;

std::ostream& Console::out() {
  status_line_.wipe();
  return host_ != nullptr ? host_->out : std::cout;
}

void Console::print_text(std::string_view text) { out() << fitted(text, screen_) << '\n'; }

void Console::warn(std::string_view text) { print_message("warning: " + std::string(text)); }

void Console::note(std::string_view text) { print_message(std::string(text)); }

void Console::print_message(const std::string& text) {
  if (options_.quiet) return;
  if (host_ != nullptr) return host_->on_message(text);
  status_line_.wipe();
  std::cerr << fitted(tool_ + ": " + text, Screen::of(STDERR_FILENO)) << '\n';
}

std::string Console::paint(Paint paint, std::string_view text) const {
  if (!has_color_ || paint == Paint::Plain) return std::string(text);
  return kEscapeCodes[static_cast<size_t>(paint)] + std::string(text) + "\033[0m";
}

std::stop_token Console::stop_token() {
  if (host_ != nullptr) return host_->stop;
  watch();
  return watch_->token();
}

void Console::watch() {
  if (!watch_) watch_ = std::make_unique<SignalWatch>(status_line_);
}

void Console::on_status_request(std::function<void()> print_status) {
  if (host_ != nullptr) return;
  watch();
  watch_->on_status_request(std::move(print_status));
}

void Console::end_at_once_when_stopped(bool at_once) {
  watch();
  if (!at_once) return watch_->on_stop({});
  watch_->on_stop([this](int signal) {
    status_line_.close();
    const ckpt::Error cancelled(ckpt::ErrorCode::IoFailure, {}, "cancelled");
    const Failure stopped =
        stopped_by(signal, describe_failure(std::make_exception_ptr(cancelled)));
    report_failure(tool_, stopped, options_.json);
    _exit(stopped.exit_code);
  });
}

int Console::stop_signal() const { return watch_ ? watch_->signal() : 0; }

Failure describe_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ckpt::Error& known) {
    return from_error(known);
  } catch (const CLI::ArgumentMismatch& usage) {
    return make_failure(2, "usage", without_type(usage.what()));
  } catch (const CLI::ParseError& usage) {
    return make_failure(2, "usage", usage.what());
  } catch (const std::bad_alloc&) {
    return from_bad_alloc();
  } catch (const std::system_error& failed) {
    return from_system_error(failed);
  } catch (const std::exception& unexpected) {
    return make_failure(70, "internal", std::string("internal error: ") + unexpected.what());
  } catch (...) {
    return make_failure(70, "internal", "internal error: an exception of unknown type");
  }
}

Failure stopped_by(int signal, Failure failure) {
  failure.exit_code = 128 + signal;
  failure.code = "interrupted";
  if (failure.line == "cancelled") failure.line = failure.problem = "interrupted";
  return failure;
}

void report_failure(const std::string& tool, const Failure& failure, bool json) {
  if (json) {
    std::cout << printable_json(to_json(failure).dump(2)) << '\n' << std::flush;
    if (std::cout) return;
  }
  const Screen screen = Screen::of(STDERR_FILENO);
  std::cerr << fitted(tool + ": error: " + failure.line, screen) << '\n';
  if (!failure.hint.empty()) std::cerr << fitted("hint: " + failure.hint, screen) << '\n';
}

}  // namespace tools
