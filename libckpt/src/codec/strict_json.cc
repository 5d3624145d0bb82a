// JSON from files: nothing twice, nothing too deep, and no memory needed to let go of it.
#include "codec/strict_json.h"

#include <algorithm>
#include <array>
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

using std::string_view;

// One pass over JSON without recursion: brackets, strings, commas and words are where they must be.
class Scanner {
 public:
  explicit Scanner(string_view text) : text_(text) {}

  JsonScan run() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    while (fault_ == JsonFault::None) {
      at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
      if (at_ == text_.size()) break;
      step(text_[at_]);
    }
    if (fault_ == JsonFault::None && expected_ != Expected::Nothing) fault_ = JsonFault::Cut;
    return {fault_, at_};
  }

 private:
  enum class Expected : uint8_t { Value, ValueOrEnd, Key, KeyOrEnd, Colon, CommaOrEnd, Nothing };

  void step(char c) {
    switch (expected_) {
      case Expected::ValueOrEnd:
        if (c == ']') return close(']');
        [[fallthrough]];
      case Expected::Value: return value(c);
      case Expected::KeyOrEnd:
        if (c == '}') return close('}');
        [[fallthrough]];
      case Expected::Key: return c == '"' ? text(Expected::Colon) : fail();
      case Expected::Colon: return c == ':' ? pass(Expected::Value) : fail();
      case Expected::CommaOrEnd:
        if (c != ',') return close(c);
        return pass(open_.back() == '{' ? Expected::Key : Expected::Value);
      case Expected::Nothing: return fail();
    }
  }

  void value(char c) {
    if (c == '"') return text(after_value());
    if (c != '{' && c != '[') return word();
    open_.push_back(c);
    pass(c == '{' ? Expected::KeyOrEnd : Expected::ValueOrEnd);
  }

  void close(char c) {
    const char opened = c == '}' ? '{' : c == ']' ? '[' : '\0';
    if (open_.empty() || open_.back() != opened) return fail();
    open_.pop_back();
    pass(after_value());
  }

  // Up to the closing quote.
  void text(Expected next) {
    for (size_t end = at_ + 1; end < text_.size(); ++end) {
      if (static_cast<unsigned char>(text_[end]) < ' ') {
        at_ = end;
        return fail();
      }
      if (text_[end] == '\\') {
        ++end;
      } else if (text_[end] == '"') {
        at_ = end;
        return pass(next);
      }
    }
    fault_ = JsonFault::Cut;
    at_ = text_.size();
  }

  void word() {
    static constexpr std::array<string_view, 6> kWords = {"true", "false",    "null",
                                                          "NaN",  "Infinity", "-Infinity"};
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:]}[{\"", at_), text_.size());
    const string_view word = text_.substr(at_, end - at_);
    const bool is_known = std::ranges::find(kWords, word) != kWords.end();
    const bool is_start =
        end == text_.size() &&
        std::ranges::any_of(kWords, [&](string_view known) { return known.starts_with(word); });
    if (!is_known && is_start) {
      at_ = end;
      fault_ = JsonFault::Cut;
      return;
    }
    if (!is_known && !is_number(word)) return fail();
    at_ = end - 1;
    pass(after_value());
  }

  static bool is_number(string_view word) {
    const bool has_digit = word.find_first_of("0123456789") != word.npos;
    return has_digit && word.find_first_not_of("0123456789+-.eE") == word.npos &&
           (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
  }

  Expected after_value() const { return open_.empty() ? Expected::Nothing : Expected::CommaOrEnd; }
  void pass(Expected next) {
    expected_ = next;
    ++at_;
  }
  void fail() { fault_ = JsonFault::Malformed; }

  string_view text_;
  size_t at_ = 0;
  std::string open_;  // brackets
  Expected expected_ = Expected::Value;
  JsonFault fault_ = JsonFault::None;
};

}  // namespace

JsonTree::~JsonTree() { take_apart(root_); }

JsonTree parse_strict_json(const std::string& text, const StrictJson& strict) {
  Builder builder(strict);
  if (json::sax_parse(text, &builder)) return builder.take();
  if (builder.failed_at() > text.size()) return JsonTree::cut();
  return JsonTree(json(json::value_t::discarded));
}

JsonScan scan_json(string_view text) { return Scanner(text).run(); }

}  // namespace ckpt
