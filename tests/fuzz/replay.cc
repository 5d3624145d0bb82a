// Runs every file of the folders that it is given through a fuzz target: the corpus as a test.
#include <filesystem>
#include <iostream>
#include <set>

#include "fuzz/fuzz.h"
#include "support/golden.h"

int main(int argc, char** argv) {
  std::set<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      paths.insert(entry.path());
    }
  }
  for (const auto& path : paths) {
    const std::string input = test::read_file(path);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::cout << paths.size() << " inputs\n";
  return paths.empty() ? 1 : 0;
}
