#include "step/single_thread.h"

#include <ATen/Parallel.h>

namespace optim {

SingleThread::SingleThread() : thread_count_before_(at::get_num_threads()) {
  at::set_num_threads(1);
}

SingleThread::~SingleThread() { at::set_num_threads(thread_count_before_); }

}  // namespace optim
