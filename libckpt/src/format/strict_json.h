#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace ckpt {

struct StrictJson {
  size_t depth_max;  // of open objects and arrays
  // Is told why, and must throw. `key`: the one that an object has twice.
  std::function<void(const std::string& key, const std::string& problem)> refuse;
};

// Parses a text from a file; the value is discarded where it is no JSON. nlohmann keeps the last of
// equal keys without a word, and its parser with a callback, which would see them, takes time in
// the square of an object's members.
nlohmann::json parse_strict_json(const std::string& text, const StrictJson& strict);

}  // namespace ckpt
