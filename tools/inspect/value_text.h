#pragma once

#include <string>

#include <ckpt/document.h>
#include <common/console.h>
#include <nlohmann/json.hpp>

namespace tools::inspect {

// A value on one line, as Python's repr() would have it where it is short, else what it is: 0.01,
// 'adam', (0.9, 0.95), "dict of 3", "tensor bfloat16 [2, 16]", "argparse.Namespace object".
std::string value_text(const ckpt::Value& value, size_t width_max = 100);

// A value as an indented tree. Objects are shown by class and attributes; nothing in them is run.
struct TreeLimits {
  size_t lines_max = 1000;
  size_t elements_max = 20;  // of one container that is no dict
};
void print_tree(Console& console, const ckpt::Value& root, const TreeLimits& limits);

// What JSON has is itself; the rest is an object with one "$" key, see docs/schema/show.json.
// Deeper than 64 containers, and after a million values, {"$truncated": true}.
nlohmann::json value_to_json(const ckpt::Value& root);

}  // namespace tools::inspect
