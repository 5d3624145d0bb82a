#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/key_pattern.h>

namespace tools::inspect {

// The value that a JSON pointer names below `root`: "/args/@lr", "/0/optimizer/param_groups/1", "".
std::optional<ckpt::Value> value_at(const ckpt::Value& root, std::string_view pointer);

// Pointers to the values near `root`, the nearest first: for suggestions.
std::vector<std::string> pointers_near(const ckpt::Value& root);

struct NamedValue {
  std::string pointer;
  ckpt::Value value;
};

// The values below `root` that a typed key names: `Exact`, the one at this pointer; `Spelling`, all
// that it names with other separators: "args.lr" for "/args/@lr".
std::vector<NamedValue> values_named(const ckpt::Value& root, std::string_view typed,
                                     ckpt::KeyMatch match);

}  // namespace tools::inspect
