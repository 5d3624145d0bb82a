// Loaded before the libraries of a program: the program is killed in front of its KILL_AT-th call
// that changes a name. Under KILL_AFTER_PUBLISHING those count that come after `content` was
// renamed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

bool is_published = false;

void count_call() {
  static const bool is_late = std::getenv("KILL_AFTER_PUBLISHING") != nullptr;
  static const char* const text = std::getenv("KILL_AT");
  static int left = text != nullptr ? std::atoi(text) : 0;
  if (is_late && !is_published) return;
  if (left > 0 && --left == 0) kill(getpid(), SIGKILL);
}

template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool ends_with(const char* text, const char* end) {
  const size_t size = std::strlen(text), end_size = std::strlen(end);
  return size >= end_size && std::strcmp(text + size - end_size, end) == 0;
}

int noted(int result, const char* source) {
  is_published = is_published || (result == 0 && ends_with(source, "/content"));
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int unlink(const char* path) noexcept {
  count_call();
  return real(&unlink, "unlink")(path);
}

int rmdir(const char* path) noexcept {
  count_call();
  return real(&rmdir, "rmdir")(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  count_call();
  return real(&mkdir, "mkdir")(path, mode);
}

int link(const char* source, const char* target) noexcept {
  count_call();
  return real(&link, "link")(source, target);
}

int rename(const char* source, const char* target) noexcept {
  count_call();
  return noted(real(&rename, "rename")(source, target), source);
}

int renameat2(int source_folder, const char* source, int target_folder, const char* target,
              unsigned flags) noexcept {
  count_call();
  const auto call = real(&renameat2, "renameat2");
  return noted(call(source_folder, source, target_folder, target, flags), source);
}
}
#pragma GCC visibility pop
