// Expressions of tables, parsed and computed in one pass.
#include "model/expression.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <vector>

#include <ckpt/error.h>

namespace optim {
namespace {

using nlohmann::json;

constexpr int64_t kListMax = 1 << 20;
constexpr int kNestingMax = 32;

[[noreturn]] void refuse_values(std::string_view text, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = std::string(text)}, problem);
}

int64_t whole_number(const json& value, std::string_view text) {
  if (value.is_number_integer()) return value.get<int64_t>();
  refuse_values(text, "needs whole numbers, found " + value.dump());
}

json arithmetic(std::string_view sign, int64_t a, int64_t b, std::string_view text) {
  int64_t result = 0;
  bool fails = false;
  if (sign == "+") fails = __builtin_add_overflow(a, b, &result);
  if (sign == "-") fails = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") fails = __builtin_mul_overflow(a, b, &result);
  if (sign == "//" || sign == "%") {
    fails = a < 0 || b <= 0;
    if (!fails) result = sign == "%" ? a % b : a / b;
  }
  if (!fails) return result;
  const std::string problem = std::to_string(a) + " " + std::string(sign) + " " + std::to_string(b);
  refuse_values(text, "cannot compute " + problem);
}

bool contains(const json& whole, const json& part, std::string_view text) {
  if (whole.is_array()) return std::ranges::find(whole, part) != whole.end();
  if (!whole.is_string() || !part.is_string()) refuse_values(text, "looks into " + whole.dump());
  return whole.get_ref<const std::string&>().find(part.get_ref<const std::string&>()) !=
         std::string::npos;
}

json apply(std::string_view sign, const json& left, const json& right, std::string_view text) {
  if (sign == "==") return left == right;
  if (sign == "!=") return left != right;
  if (sign == "in") return contains(right, left, text);
  if (sign == "not in") return !contains(right, left, text);
  if (sign.find_first_of("<>") == sign.npos) {
    return arithmetic(sign, whole_number(left, text), whole_number(right, text), text);
  }
  if (!left.is_number() || !right.is_number()) {
    refuse_values(text, "compares " + left.dump() + " and " + right.dump());
  }
  if (sign == "<") return left < right;
  if (sign == ">") return right < left;
  return sign == "<=" ? !(right < left) : !(left < right);
}

// Of Megatron's moe_layer_freq every N-th layer from the first on; of window_attn_skip_freq all but
// every N-th, where the first is 1, and all of None. A list is what it is.
json layers_by(const std::string& function, const json& frequency, const json& count,
               std::string_view text) {
  const int64_t layers = whole_number(count, text);
  if (frequency.is_array()) {
    if (std::ssize(frequency) == layers) return frequency;
    refuse_values(text, "is not a list of one entry for each layer");
  }
  const bool is_window = function == "window_layers";
  const int64_t every =
      is_window && frequency.is_null() ? INT64_MAX : whole_number(frequency, text);
  if (every < 1 || layers < 0 || layers > kListMax) refuse_values(text, "has no such frequency");
  json list = json::array();
  for (int64_t i = 0; i < layers; ++i) {
    list.push_back(int64_t{is_window ? (i + 1) % every != 0 : i % every == 0});
  }
  return list;
}

// A 0 for each of these layers, or for so many first ones, and a 1 for all others; 1 where there
// are none of them.
json all_but(const json& places, const json& count, std::string_view text) {
  const int64_t layers = whole_number(count, text);
  if (layers < 0 || layers > kListMax) refuse_values(text, "has no such number of layers");
  const int64_t first = places.is_array() || places.is_null() ? 0 : whole_number(places, text);
  json list = json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const bool is_named = places.is_array() && std::ranges::find(places, json(i)) != places.end();
    list.push_back(int64_t{i >= first && !is_named});
  }
  const bool has_all = std::ranges::all_of(list, is_truthy);
  return has_all ? json(int64_t{1}) : list;
}

// How many zeros stand in front of entries that are none; null where a zero comes later.
json leading(const json& list) {
  const auto first = std::ranges::find_if(list, is_truthy);
  if (!std::all_of(first, list.end(), is_truthy)) return nullptr;
  return static_cast<int64_t>(first - list.begin());
}

json call(const std::string& function, const std::vector<json>& values, std::string_view text) {
  const size_t count = values.size();
  if (function == "first") {
    const auto found = std::ranges::find_if(values, [](const json& v) { return !v.is_null(); });
    return found == values.end() ? json() : *found;
  }
  if ((function == "frequency" || function == "window_layers") && count == 2) {
    return layers_by(function, values[0], values[1], text);
  }
  if (function == "all_but" && count == 2) return all_but(values[0], values[1], text);
  const bool is_of_list = count > 0 && values[0].is_array();
  json result = json::array();
  if (function == "letters" && count == 1 && values[0].is_string()) {
    for (const char letter : values[0].get_ref<const std::string&>()) {
      if (letter != '|') result.push_back(std::string(1, letter));
    }
    return result;
  }
  if (function == "named" && is_of_list && count == 2 && values[1].is_object()) {
    for (const json& each : values[0]) {
      const auto name =
          each.is_string() ? values[1].find(each.get<std::string>()) : values[1].end();
      result.push_back(name == values[1].end() ? json() : *name);
    }
    return result;
  }
  if (function == "leading" && is_of_list && count == 1) return leading(values[0]);
  if (function == "where" && is_of_list && count == 2) {
    for (size_t i = 0; i < values[0].size(); ++i) {
      if (values[0][i] == values[1]) result.push_back(static_cast<int64_t>(i));
    }
    return result;
  }
  if (function == "pick" && is_of_list && count == 3) {
    for (const json& each : values[0]) result.push_back(is_truthy(each) ? values[1] : values[2]);
    return result;
  }
  refuse_values(text, "calls '" + ckpt::escaped(function) + "' of other values than it takes");
}

class Evaluator {
 public:
  Evaluator(std::string_view text, const Lookup& lookup) : text_(text), lookup_(lookup) {}

  json whole() {
    json value = choice();
    if (!peek().empty()) bad();
    return value;
  }

 private:
  [[noreturn]] void bad() {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = std::string(text_)},
                      "is not an expression, from character " + std::to_string(at_ + 1) + " on",
                      "docs/huggingface.md says what an expression is");
  }

  // The next word, number, text or sign, which it does not pass.
  std::string_view peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::string_view rest = text_.substr(at_);
    if (rest.empty()) return rest;
    const auto is_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    };
    if (is_word(rest[0])) {
      const bool is_number = std::isdigit(static_cast<unsigned char>(rest[0])) != 0;
      size_t end = 1;
      while (end < rest.size() && (is_word(rest[end]) || (is_number && rest[end] == '.'))) ++end;
      return rest.substr(0, end);
    }
    if (rest[0] == '\'') {
      const size_t end = rest.find('\'', 1);
      if (end == rest.npos) bad();
      return rest.substr(0, end + 1);
    }
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "//"}) {
      if (rest.starts_with(sign)) return sign;
    }
    return rest.substr(0, 1);
  }
  std::string take() {
    const std::string token(peek());
    at_ += token.size();
    return token;
  }
  bool accept(std::string_view token) {
    if (peek() != token) return false;
    at_ += token.size();
    return true;
  }
  void require(std::string_view token) {
    if (!accept(token)) bad();
  }

  // What `parse` passes is not computed.
  template <class Parse>
  json skipped(const Parse& parse) {
    ++skipping_;
    parse();
    --skipping_;
    return {};
  }

  json choice() {
    if (++depth_ > kNestingMax) bad();
    const size_t start = at_;
    skipped([&] { logic(true); });
    const bool is_choice = accept("if");
    const bool is_first = !is_choice || is_truthy(logic(true));
    if (is_choice) require("else");
    const size_t behind = at_;
    json value;
    if (!is_first || (is_choice && skipping_)) {
      value = choice();
    } else if (!skipping_) {
      at_ = start;
      value = logic(true);
      at_ = behind;
      if (is_choice) skipped([&] { choice(); });
    }
    --depth_;
    return value;
  }

  // `or` of what `and` joins.
  json logic(bool is_or) {
    const auto next = [&] { return is_or ? logic(false) : negated(); };
    json value = next();
    while (accept(is_or ? "or" : "and")) {
      if (is_truthy(value) == is_or)
        skipped(next);
      else
        value = next();
    }
    return value;
  }
  json negated() {
    size_t count = 0;
    while (accept("not")) ++count;
    json value = binary(0);
    return count == 0 ? value : json(is_truthy(value) == (count % 2 == 0));
  }

  // Comparisons, of which one stands alone, sums, products.
  json binary(size_t level) {
    using Signs = std::vector<std::string_view>;
    static const std::array<Signs, 3> kLevels = {
        Signs{"==", "!=", "<=", ">=", "<", ">", "in", "not"}, {"+", "-"}, {"*", "//", "%"}};
    if (level == kLevels.size()) return indexed();
    json left = binary(level + 1);
    while (std::ranges::find(kLevels[level], peek()) != kLevels[level].end()) {
      std::string sign = take();
      if (sign == "not") sign += " " + take();
      if (sign.starts_with("not") && sign != "not in") bad();
      const json right = binary(level + 1);
      if (!skipping_) left = apply(sign, left, right, text_);
      if (level == 0) break;
    }
    return left;
  }
  json indexed() {
    json value = primary();
    while (accept("[")) {
      const json index = choice();
      require("]");
      if (skipping_) continue;
      const int64_t place = whole_number(index, text_);
      if (!value.is_array() || place < 0 || place >= std::ssize(value)) {
        refuse_values(text_, "has no entry " + index.dump() + " in " + value.dump());
      }
      value = json(value[static_cast<size_t>(place)]);
    }
    return value;
  }

  json primary() {
    const std::string token = take();
    if (token.empty()) bad();
    if (token == "(") {
      json value = choice();
      require(")");
      return value;
    }
    if (token == "[") return values_until("]");
    if (token == "{") return object();
    if (token[0] == '\'') return token.substr(1, token.size() - 2);
    if (std::isdigit(static_cast<unsigned char>(token[0]))) return number(token);
    if (token == "None") return nullptr;
    if (token == "True" || token == "False") return token == "True";
    if (!std::isalpha(static_cast<unsigned char>(token[0])) && token[0] != '_') bad();
    if (!accept("(")) return skipping_ ? json() : lookup_(token);
    const json values = values_until(")");
    return skipping_ ? json() : call(token, values, text_);
  }
  json number(const std::string& token) {
    const json value = json::parse(token, nullptr, false);
    if (!value.is_number()) bad();
    return value.is_number_integer() ? json(value.get<int64_t>()) : value;
  }
  json values_until(std::string_view end) {
    json values = json::array();
    while (!accept(end)) {
      if (!values.empty()) require(",");
      values.push_back(choice());
    }
    return values;
  }
  json object() {
    json made = json::object();
    while (!accept("}")) {
      if (!made.empty()) require(",");
      const std::string name = take();
      if (name.size() < 2 || name[0] != '\'') bad();
      require(":");
      made[name.substr(1, name.size() - 2)] = choice();
    }
    return made;
  }

  std::string_view text_;
  const Lookup& lookup_;
  size_t at_ = 0;
  int skipping_ = 0, depth_ = 0;
};

}  // namespace

bool is_truthy(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

json json_of(const ckpt::Value& value) {
  using ckpt::Kind;
  switch (value.kind()) {
    case Kind::None: return nullptr;
    case Kind::Bool: return value.as_bool();
    case Kind::Int: return value.as_int();
    case Kind::Float: return value.as_float();
    case Kind::Str: return std::string(value.text());
    case Kind::List:
    case Kind::Tuple: {
      json list = json::array();
      for (size_t i = 0; i < value.size(); ++i) list.push_back(json_of(value[i]));
      return list;
    }
    default: return "(an object)";
  }
}

json evaluate(std::string_view text, const Lookup& lookup) {
  return Evaluator(text, lookup).whole();
}

}  // namespace optim
