#pragma once

namespace optim {

// While it lives, LibTorch computes with one thread per operation: matrix products of more threads
// may round differently. Process-wide: for programs, not for code that shares a process with
// others.
class SingleThread {
 public:
  SingleThread();
  ~SingleThread();
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int thread_count_before_;
};

}  // namespace optim
