// A program's name in a wheel, which has no links: starts the binary `shardwise` beside itself with
// this name as its first word.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

int main(int argc, char** argv) {
  char self[PATH_MAX] = {}, binary[PATH_MAX + sizeof("shardwise")] = {};
  // Whatever a link to this file is called, and wherever it lies.
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  auto** words = static_cast<char**>(calloc(static_cast<size_t>(argc) + 3, sizeof(char*)));
  if (size > 0 && words != nullptr) {
    char* const name = strrchr(self, '/') + 1;
    memcpy(binary, self, static_cast<size_t>(name - self));
    memcpy(binary + (name - self), "shardwise", sizeof("shardwise"));
    words[0] = binary;
    words[1] = name;
    if (argc > 1) std::copy(argv + 1, argv + argc, words + 2);
    execv(binary, words);
  }
  perror(size > 0 ? binary : "/proc/self/exe");
  return 5;
}
