#include "common/key_filter.h"

#include <ckpt/error.h>
#include <training/listing.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

void warn(const std::vector<optim::UnmatchedPattern>& patterns, Console& console) {
  for (const auto& [typed, nearest] : patterns) {
    console.warn("'" + ckpt::escaped(typed) + "' matches no key" +
                 (nearest ? "; did you mean '" + *nearest + "'?" : ""));
  }
}

}  // namespace

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

void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console) {
  warn(optim::unmatched_patterns(catalog, filter.selection()), console);
}

void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console) {
  if (filter.is_everything()) return;
  const optim::SelectedEntries selected = optim::select_entries(inventories, filter.selection());
  warn(selected.unmatched, console);
  if (selected.is_any) return;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + filter.text(),
                    "ckpt-inspect ls lists the keys");
}

}  // namespace tools
