#pragma once

#include <string>
#include <vector>

#include <ckpt/key_pattern.h>

namespace CLI {
class App;
}

namespace tools {

// --include and --exclude: keys and globs, as docs/formats/keys.md reads them.
struct KeyFilter {
  std::vector<std::string> include;
  std::vector<std::string> exclude;

  void declare(CLI::App& app);
  bool is_everything() const { return include.empty() && exclude.empty(); }
  // To be resolved with the keys that there are.
  ckpt::KeySelection selection() const { return {include, exclude}; }
  // "--include 'a' --exclude 'b'", for people.
  std::string text() const;
};

}  // namespace tools
