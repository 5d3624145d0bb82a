// The programs' commands inside of Python's process: the same options, and the JSON of --json.
#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <programs.h>

#include "module.h"

namespace python {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kProgressInterval(100);

tools::Program program_named(const std::string& name) {
  if (name == "ckpt-convert") return tools::convert_program();
  if (name == "reshard") return tools::reshard_program();
  return tools::inspect_program();
}

// Calls Python's function with (step, done_bytes, total_bytes), ten times a second at most; what it
// raises requests a stop.
class ProgressCall {
 public:
  ProgressCall(nb::object function, std::stop_source& stop)
      : function_(std::move(function)), stop_(stop) {}

  void operator()(std::string_view step, const ckpt::Progress& progress) {
    const Clock::time_point now = Clock::now();
    const bool is_last = progress.done_bytes >= progress.total_bytes;
    if (function_.is_none() || raised_ || (now < next_ && !is_last)) return;
    next_ = now + kProgressInterval;
    const nb::gil_scoped_acquire held;
    try {
      function_(text(step), progress.done_bytes, progress.total_bytes);
    } catch (nb::python_error& raised) {
      raised_.emplace(std::move(raised));
      stop_.request_stop();
    }
  }
  void raise() {
    if (raised_) throw nb::python_error(std::move(*raised_));
  }

 private:
  nb::object function_;
  std::stop_source& stop_;
  Clock::time_point next_;
  std::optional<nb::python_error> raised_;
};

// (exit code, JSON, warnings and notes)
nb::tuple run(const std::string& program, const std::vector<nb::bytes>& given,
              nb::object on_progress) {
  std::vector<std::string> words;
  for (const nb::bytes& word : given) words.emplace_back(word.c_str(), word.size());
  std::ostringstream out;
  std::vector<std::string> messages;
  std::stop_source stop;
  ProgressCall progress(std::move(on_progress), stop);
  tools::Host host{.out = out,
                   .on_message = [&](std::string_view message) { messages.emplace_back(message); },
                   .on_progress = [&](std::string_view step,
                                      const ckpt::Progress& done) { progress(step, done); },
                   .stop = stop.get_token()};
  int code = 0;
  try {
    run_interruptibly([&](const std::stop_token& interrupt) {
      const std::stop_callback forward(interrupt, [&] { stop.request_stop(); });
      code = tools::run_hosted(program_named(program), words, host);
    });
  } catch (const std::exception&) {
    progress.raise();
    throw;
  }
  progress.raise();
  nb::list listed;
  for (const std::string& message : messages) listed.append(text(message));
  return nb::make_tuple(code, text(out.str()), listed);
}

}  // namespace

void add_commands(nb::module_& module) {
  module.def("run", run, nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace python
