#pragma once

#include <optim/export.h>

namespace optim {

// While it lives, LibTorch's libraries compute with one thread in the thread that made it, and
// choose how they sum as for one: oneDNN and MKL choose by the number of threads that they could
// use, even where they use one. Other threads are not affected.
class OPTIM_EXPORT SingleThread {
 public:
  SingleThread();
  ~SingleThread();
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int openmp_before_, mkl_before_;
};

}  // namespace optim
