#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <ckpt/execute.h>

namespace tools {

// An environment variable that is set and not empty.
std::optional<std::string> variable(const char* name);

// One that is a whole number; throws InvalidArgument, with its name, for anything else.
int number_variable(const char* name, int least, int most);

// What whoever reads a stream can be shown.
struct Screen {
  std::optional<size_t> width;  // columns of the terminal; none: no terminal, nothing is cut
  bool is_utf8 = true;

  // COLUMNS where it is set, else what the terminal says, else 80.
  static Screen of(int descriptor);

  std::string_view ellipsis() const { return is_utf8 ? "\xE2\x80\xA6" : "..."; }
  bool shows_all() const { return is_utf8 || !width; }
  // `utf8` as a terminal of this locale shows it: "\xNN" for what is not ASCII, unless it is UTF-8.
  // What goes elsewhere stays as it is.
  std::string shown(std::string_view utf8) const;
};

// `text` for people: as the screen shows it, broken at blanks where it is longer than a line.
std::string fitted(std::string_view text, const Screen& screen);

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

enum class ColorMode : uint8_t { Auto, Always, Never };

// What every command of every tool takes.
struct CommonOptions {
  bool json = false;     // one JSON document on stdout
  bool quiet = false;    // no warnings, notes or progress
  bool verbose = false;  // more notes
  bool progress = true;  // --no-progress clears it
  ColorMode color = ColorMode::Auto;
  unsigned threads = 0;  // 0: one per core
};

enum class Paint : uint8_t { Plain, Bold, Dim, Red, Green, Yellow, Cyan };

// What stands in for stdout, stderr and signals where a command runs inside of another process.
struct Host {
  std::ostream& out;
  std::function<void(std::string_view)> on_message;  // warnings and notes
  // What is done ("writing", "hashing"), and how much of it. From any thread, one call at a time.
  std::function<void(std::string_view, const ckpt::Progress&)> on_progress;
  std::stop_token stop;
};

// Where a command writes: data to stdout, everything else to stderr. Used from one thread. All of
// it wipes the status line first.
class Console {
 public:
  Console(std::string tool, CommonOptions options);
  Console(std::string tool, CommonOptions options, Screen screen);  // as if stdout were this one
  Console(std::string tool, CommonOptions options, Host& host);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const CommonOptions& options() const { return options_; }
  const std::string& tool() const { return tool_; }
  const Screen& screen() const { return screen_; }  // stdout's
  StatusLine& status_line() { return status_line_; }
  Host* host() const { return host_; }  // null: the process is the command's own
  std::ostream& out();

  // Text on stdout, ended; on a terminal broken at blanks where it is longer than a line. Data that
  // programs read, and tables, go to out().
  void print_text(std::string_view text);

  // One message on stderr, "TOOL: warning: TEXT" and "TOOL: TEXT", broken as print_text() does;
  // nothing under --quiet.
  void warn(std::string_view text);
  void note(std::string_view text);

  // `text` in a colour if stdout shows colours: --color always, or auto on a terminal without
  // NO_COLOR.
  std::string paint(Paint paint, std::string_view text) const;

  // Is stopped by SIGINT, SIGTERM and SIGXCPU (`ulimit -t`) from the first call on; a second signal
  // ends the process at once. For commands that have something to undo: without this call the
  // signals do what they always do. Call it before any thread starts. The exit code after a stop is
  // 128 + signal (130, 143, 152).
  std::stop_token stop_token();
  int stop_signal() const;  // 0 if none arrived

  // While true, the first signal, also one that has arrived already, ends the process at once, with
  // the message and the exit code of a stopped command: for work that has nothing to undo and may
  // wait or compute for long without looking at its token. False at first. Watches signals as
  // stop_token() does.
  void end_at_once_when_stopped(bool at_once);

  // What SIGUSR1 calls from now on, on a thread of its own; empty: nothing. Watches signals as
  // stop_token() does.
  void on_status_request(std::function<void()> print_status);

 private:
  class SignalWatch;
  void watch();
  void print_message(const std::string& text);
  std::string tool_;
  CommonOptions options_;
  Screen screen_;
  bool has_color_;
  Host* host_ = nullptr;
  StatusLine status_line_;
  std::unique_ptr<SignalWatch> watch_;
};

// A failed run, as the user sees it.
struct Failure {
  int exit_code = 70;
  std::string code;  // "usage", "corrupt", "unsupported", "not_found", "already_exists", "io",
                     // "out_of_memory", "internal"
  std::string line;  // the whole text on one line, without the tool's name
  std::string hint;
  std::string file;  // the parts of `line`, for --json; empty if unknown
  long long offset_bytes = -1;
  std::string key;
  std::string problem;
};

Failure describe_failure(const std::exception_ptr& error);

// What a command failed with, when this signal had asked it to stop.
Failure stopped_by(int signal, Failure failure);

// "TOOL: error: LINE" and "hint: HINT" on stderr; under `json` a document with "error" on stdout
// instead, where that can be written.
void report_failure(const std::string& tool, const Failure& failure, bool json);

}  // namespace tools
