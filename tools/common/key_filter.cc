#include "common/key_filter.h"

#include <CLI/CLI.hpp>

#include <ckpt/error.h>

namespace tools {

void KeyFilter::declare(CLI::App& app) {
  app.add_option("--include", include, "Only keys that match; `*` crosses dots and slashes")
      ->allow_extra_args(false)
      ->option_text("GLOB ...");
  app.add_option("--exclude", exclude, "Not keys that match; FILE:KEY is accepted, too")
      ->allow_extra_args(false)
      ->option_text("GLOB ...");
}

std::string KeyFilter::text() const {
  std::string text;
  const auto add = [&](const char* option, const std::vector<std::string>& patterns) {
    for (const std::string& typed : patterns) {
      text += (text.empty() ? "" : " ") + std::string(option) + " '" + ckpt::escaped(typed) + "'";
    }
  };
  add("--include", include);
  add("--exclude", exclude);
  return text;
}

}  // namespace tools
