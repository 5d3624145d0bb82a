#pragma once

#include <functional>
#include <future>
#include <system_error>
#include <utility>

namespace ckpt {

// Runs tasks in their order, one at a time, on another thread, while its user makes the next one.
// Its own functions are for one thread. What a task uses belongs to it until start() or finish()
// is called again; its end is waited for by the destructor, too.
class TaskBehind {
 public:
  // Waits for the task before. False where that one said so, and `task` is then not run; throws
  // what it threw. Where no thread can be had, the caller's runs it.
  bool start(std::function<bool()> task) {
    if (!finish()) return false;
    task_ = std::move(task);
    try {
      running_ = std::async(std::launch::async, std::ref(task_));
    } catch (const std::system_error&) {
      return task_();
    }
    return true;
  }

  bool finish() { return !running_.valid() || running_.get(); }

 private:
  std::function<bool()> task_;
  std::future<bool> running_;
};

}  // namespace ckpt
