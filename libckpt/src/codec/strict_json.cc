// JSON from files: nothing twice, nothing too deep, and no memory needed to let go of it.
#include "codec/strict_json.h"

#include <vector>

namespace ckpt {
namespace {

using nlohmann::json;

// From the leaves up: what is emptied like this has nothing left that a destructor would collect.
void take_apart(json& value) {
  if (!value.is_structured()) return;
  for (json& inner : value) take_apart(inner);
  value.clear();
}

// Builds the tree from the events of a parse.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const StrictJson& strict) : strict_(strict) {}

  JsonTree take() { return std::move(tree_); }

  bool start_object(size_t) override { return open(json::value_t::object); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::value_t::array); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    const auto [place, is_new] = open_.back()->emplace(key, nullptr);
    if (!is_new) strict_.refuse(key, "appears twice");
    member_ = &*place;
    return true;
  }
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // JSON has none
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    failed_at_ = position;
    return false;
  }
  size_t failed_at() const { return failed_at_; }  // counted from 1; the end comes behind the text

 private:
  bool add(json value) {
    put(std::move(value));
    return true;
  }

  json& put(json value) {
    if (open_.empty()) return *tree_ = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *member_ = std::move(value);
  }

  bool open(json::value_t type) {
    if (open_.size() >= strict_.depth_max) strict_.refuse({}, "is nested too deeply");
    open_.push_back(&put(json(type)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const StrictJson& strict_;
  size_t failed_at_ = 0;
  JsonTree tree_;
  std::vector<json*> open_;  // objects and arrays; what is in them stays until they are closed
  json* member_ = nullptr;   // of the innermost one, an object: where its next value goes
};

}  // namespace

JsonTree::~JsonTree() { take_apart(root_); }

JsonTree parse_strict_json(const std::string& text, const StrictJson& strict) {
  Builder builder(strict);
  if (json::sax_parse(text, &builder)) return builder.take();
  if (builder.failed_at() > text.size()) return JsonTree::cut();
  return JsonTree(json(json::value_t::discarded));
}

}  // namespace ckpt
