#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tools {

// --include and --exclude: shell globs over keys and over "FILE:KEY", in which `*` also matches
// dots and slashes. Without --include everything is included; --exclude wins.
struct KeyFilter {
  std::vector<std::string> include;
  std::vector<std::string> exclude;

  void declare(CLI::App& app);
  bool accepts(const std::string& file, const std::string& key) const;
};

}  // namespace tools
