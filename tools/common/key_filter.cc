#include "common/key_filter.h"

#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace tools {
namespace {

bool matches(const std::vector<std::string>& globs, const std::string& file,
             const std::string& key) {
  const std::string qualified = file + ":" + key;
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return fnmatch(glob.c_str(), key.c_str(), 0) == 0 ||
           (!file.empty() && fnmatch(glob.c_str(), qualified.c_str(), 0) == 0);
  });
}

}  // namespace

void KeyFilter::declare(CLI::App& app) {
  app.add_option("--include", include, "Only keys that match; `*` crosses dots and slashes")
      ->allow_extra_args(false)
      ->option_text("GLOB ...");
  app.add_option("--exclude", exclude, "Not these; FILE:KEY matches, too")
      ->allow_extra_args(false)
      ->option_text("GLOB ...");
}

bool KeyFilter::accepts(const std::string& file, const std::string& key) const {
  return (include.empty() || matches(include, file, key)) && !matches(exclude, file, key);
}

}  // namespace tools
