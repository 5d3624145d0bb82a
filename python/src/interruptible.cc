// Work that Ctrl-C ends.
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "module.h"

namespace python {
namespace {

constexpr std::chrono::milliseconds kSignalInterval(50);

bool is_main_thread() {
  const nb::module_ threading = nb::module_::import_("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

}  // namespace

void run_interruptibly(const std::function<void(std::stop_token)>& work) {
  // On the heap: g++ 12 takes one on the stack for not initialised.
  const auto source = std::make_unique<std::stop_source>();
  std::stop_source& stop = *source;
  if (!is_main_thread()) {
    const nb::gil_scoped_release released;
    return work(stop.get_token());
  }
  std::packaged_task<void()> task([&] { work(stop.get_token()); });
  std::future<void> done = task.get_future();
  const std::jthread thread(std::move(task));
  std::optional<nb::python_error> interrupt;
  for (;;) {
    {
      const nb::gil_scoped_release released;
      if (done.wait_for(kSignalInterval) == std::future_status::ready) break;
    }
    if (interrupt || PyErr_CheckSignals() == 0) continue;
    interrupt.emplace();
    stop.request_stop();
  }
  if (interrupt) throw nb::python_error(std::move(*interrupt));
  done.get();
}

}  // namespace python
