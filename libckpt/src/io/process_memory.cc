#include "io/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "io/file.h"
#include "io/system_calls.h"

namespace ckpt {

// proc(5): the second number in /proc/self/statm is the resident set, in pages.
uint64_t resident_bytes() {
  const FileDescriptor file(
      system_calls().openat(AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC, 0));
  if (!file.is_open()) return 0;
  char buffer[256];
  const ssize_t count = system_calls().pread(file.get(), buffer, sizeof(buffer), 0);
  if (count <= 0) return 0;
  const std::string_view text(buffer, static_cast<size_t>(count));
  const size_t second = text.find(' ') + 1;
  uint64_t pages = 0;
  std::from_chars(text.data() + second, text.data() + text.size(), pages);
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace ckpt
