// A program's name in a wheel, which has no links: starts the binary `shardwise` beside itself by
// this name (docs/decisions/0195).
#include <climits>
#include <cstdio>
#include <cstring>

#include <unistd.h>

int main(int, char** argv) {
  char self[PATH_MAX] = {}, binary[PATH_MAX + sizeof("shardwise")] = {};
  // Whatever a link to this file is called, and wherever it lies.
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (size > 0) {
    const auto folder = static_cast<size_t>(strrchr(self, '/') + 1 - self);
    memcpy(binary, self, folder);
    memcpy(binary + folder, "shardwise", sizeof("shardwise"));
    argv[0] = self;
    execv(binary, argv);
  }
  perror(size > 0 ? binary : "/proc/self/exe");
  return 5;
}
