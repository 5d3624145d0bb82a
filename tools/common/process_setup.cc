// The process as every tool wants it, whatever it was started with.
#include "common/process_setup.h"

#include <ckpt/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <new>

// What jemalloc reads, where a program has it: one arena, since few threads allocate at once and
// several keep more free pages; what is free for a second goes back (docs/decisions/0186).
extern "C" {
const char* malloc_conf = "narenas:1,dirty_decay_ms:1000";
}

namespace tools {
namespace {

// Something that can be neither read nor written and is always there: as if it were still closed.
void hold_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool is_open = fcntl(descriptor, F_GETFD) >= 0;
    if (!is_open) (void)open("/", O_PATH | O_DIRECTORY);  // takes the lowest that is free
  }
}

constexpr size_t kReserveBytes = size_t{1} << 20;
std::atomic<void*> memory_reserve = nullptr;

// Called by operator new where there is no memory: some for undoing what was begun, and for saying
// so.
void give_back_reserve() {
  std::free(memory_reserve.exchange(nullptr));
  throw std::bad_alloc();
}

}  // namespace

void set_up_process() {
  if (memory_reserve == nullptr) memory_reserve = std::malloc(kReserveBytes);
  std::set_new_handler(give_back_reserve);
  hold_closed_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of file sizes then fails with EFBIG
}

void refuse_closed_stdout() {
  const int flags = fcntl(STDOUT_FILENO, F_GETFL);
  const bool is_writable = flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY;
  if (is_writable) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "stdout is closed",
                    "if nobody is to read it, send it to /dev/null");
}

}  // namespace tools
