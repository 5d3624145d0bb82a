#pragma once

#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/inventory.h>
#include <ckpt/key_pattern.h>
#include <common/console.h>

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

// Leaves in the inventories what --include and --exclude select. Warns of globs that match nothing.
// Throws NotFound where an included key is not there, or nothing is left: of nothing there is
// nothing to say.
void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console);

// Says of each pattern that matches nothing what may have been meant.
void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console);

}  // namespace tools
