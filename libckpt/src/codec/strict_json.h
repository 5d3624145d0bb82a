#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace ckpt {

// A value with all that is in it. nlohmann's own destructor takes memory where something is nested,
// and ends the process where there is none; this one takes none.
class JsonTree {
 public:
  JsonTree() = default;
  explicit JsonTree(nlohmann::json root) : root_(std::move(root)) {}
  JsonTree(JsonTree&& other) noexcept : root_(std::move(other.root_)), is_cut_(other.is_cut_) {}
  JsonTree& operator=(JsonTree other) noexcept {
    root_.swap(other.root_);
    is_cut_ = other.is_cut_;
    return *this;
  }
  ~JsonTree();

  static JsonTree cut() {
    JsonTree tree{nlohmann::json(nlohmann::json::value_t::discarded)};
    tree.is_cut_ = true;
    return tree;
  }
  bool is_cut() const { return is_cut_; }  // discarded, because the text ends early

  nlohmann::json& operator*() { return root_; }
  const nlohmann::json& operator*() const { return root_; }
  const nlohmann::json* operator->() const { return &root_; }

 private:
  nlohmann::json root_;
  bool is_cut_ = false;
};

struct StrictJson {
  size_t depth_max;  // of open objects and arrays
  // Is told why, and must throw. `key`: the one that an object has twice.
  std::function<void(const std::string& key, const std::string& problem)> refuse;
};

// Parses a text from a file; the value is discarded where it is no JSON. nlohmann keeps the last of
// equal keys without a word, and its parser with a callback, which would see them, takes time in
// the square of an object's members.
JsonTree parse_strict_json(const std::string& text, const StrictJson& strict);

enum class JsonFault : uint8_t { None, Cut, Malformed };

// Whether a text is JSON as Python writes it, with NaN and Infinity; what it says is not kept.
struct JsonScan {
  JsonFault fault = JsonFault::None;
  uint64_t offset_bytes = 0;  // of the fault
};
JsonScan scan_json(std::string_view text);

}  // namespace ckpt
