#include "step/loops/single_thread.h"

#include <ATen/Parallel.h>
#include <omp.h>

// Exported by LibTorch where it was built with MKL. Returns what it was for this thread; 0: what
// MKL chooses.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int count);

namespace optim {
namespace {

int set_mkl_threads(int count) {
  return MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(count);
}

}  // namespace

// at::get_num_threads() first: LibTorch sets both numbers when a thread asks for the first time.
SingleThread::SingleThread()
    : openmp_before_(at::get_num_threads()), mkl_before_(set_mkl_threads(1)) {
  omp_set_num_threads(1);
}

SingleThread::~SingleThread() {
  omp_set_num_threads(openmp_before_);
  set_mkl_threads(mkl_before_);
}

}  // namespace optim
