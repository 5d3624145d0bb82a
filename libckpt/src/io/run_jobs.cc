// Threads that take jobs one by one.
#include <ckpt/run_jobs.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ckpt {

namespace {

class JobQueue {
 public:
  JobQueue(size_t job_count, const Job& run) : job_count_(job_count), run_(run) {}

  void work(unsigned worker) {
    size_t job = 0;
    while (take(job)) {
      try {
        run_(job, worker);
      } catch (...) {
        fail(job, std::current_exception());
      }
    }
  }

  // Jobs below a failed one have all been started, so the lowest failure is always seen.
  void fail(size_t job, std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (error_ && job > failed_job_) return;
    failed_job_ = job;
    error_ = std::move(error);
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool take(size_t& job) {
    const std::scoped_lock lock(mutex_);
    if (error_ || next_ == job_count_) return false;
    job = next_++;
    return true;
  }

  const size_t job_count_;
  const Job& run_;
  std::mutex mutex_;
  size_t next_ = 0;
  size_t failed_job_ = 0;
  std::exception_ptr error_;
};

}  // namespace

unsigned thread_count(unsigned requested) {
  return requested != 0 ? requested : std::max(1u, std::thread::hardware_concurrency());
}

void run_jobs(size_t job_count, unsigned threads, const Job& run) {
  JobQueue queue(job_count, run);
  const auto workers = static_cast<unsigned>(std::min<size_t>(threads, job_count));
  {
    std::vector<std::jthread> others;  // joined at the end of this block
    try {
      for (unsigned worker = 1; worker < workers; ++worker) {
        others.emplace_back([&queue, worker] { queue.work(worker); });
      }
    } catch (const std::system_error&) {  // those that have started do all
    }
    queue.work(0);
  }
  queue.rethrow();
}

}  // namespace ckpt
