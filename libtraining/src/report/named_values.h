#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ckpt/key_pattern.h>
#include <ckpt/value.h>

namespace optim {

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

}  // namespace optim
