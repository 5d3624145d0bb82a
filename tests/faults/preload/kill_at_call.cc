// Loaded before the libraries of a program: the program is killed in front of its KILL_AT-th call
// that changes a name. Under KILL_AFTER_PUBLISHING those count that come after `content` was
// renamed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
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

int noted(int result, const char* source) {
  is_published = is_published || (result == 0 && std::strcmp(source, "content") == 0);
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int unlinkat(int folder, const char* path, int flags) noexcept {
  count_call();
  return real(&unlinkat, "unlinkat")(folder, path, flags);
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  count_call();
  return real(&mkdirat, "mkdirat")(folder, path, mode);
}

int linkat(int source_folder, const char* source, int folder, const char* target,
           int flags) noexcept {
  count_call();
  return real(&linkat, "linkat")(source_folder, source, folder, target, flags);
}

int renameat2(int source_folder, const char* source, int target_folder, const char* target,
              unsigned flags) noexcept {
  count_call();
  const auto call = real(&renameat2, "renameat2");
  return noted(call(source_folder, source, target_folder, target, flags), source);
}
}
#pragma GCC visibility pop
