#include "inspect/value_text.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <unordered_set>

#include <ckpt/error.h>
#include <ckpt/text.h>
#include <common/json.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr size_t kInlineElementsMax = 8;
constexpr size_t kHexBytesMax = 16;

// Python writes 3.0, not 3.
std::string float_text(double value) {
  std::string text = number_text(value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string bytes_text(const char* what, std::string_view bytes) {
  std::string text = std::string(what) + " of " + std::to_string(bytes.size());
  for (size_t i = 0; i < std::min(bytes.size(), kHexBytesMax); ++i) {
    text += i == 0 ? ": " : " ";
    ckpt::append_hex(text, static_cast<unsigned char>(bytes[i]), 2);
  }
  return bytes.size() > kHexBytesMax ? text + " ..." : text;
}

std::string global_text(const Value& value) {
  return ckpt::escaped(value.module()) + "." + ckpt::escaped(value.name());
}

bool is_scalar(const Value& value) {
  switch (value.kind()) {
    case Kind::None:
    case Kind::Bool:
    case Kind::Int:
    case Kind::BigInt:
    case Kind::Float:
    case Kind::Str:
    case Kind::Global: return true;
    default: return false;
  }
}

bool holds_only_scalars(const Value& value) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (!is_scalar(value[i])) return false;
  }
  return true;
}

// "tuple of 625: 3, 2147483648, ...": the first elements of a long list of scalars.
std::string preview(const char* what, const Value& value) {
  std::string text = std::string(what) + " of " + std::to_string(value.size());
  if (value.size() == 0 || !holds_only_scalars(value)) return text;
  for (size_t i = 0; i < std::min(value.size(), kInlineElementsMax); ++i) {
    text += (i == 0 ? ": " : ", ") + value_text(value[i], 30);
  }
  return value.size() > kInlineElementsMax ? text + ", ..." : text;
}

// (0.9, 0.95): all in one line; nullopt if there are more, or something that is not a scalar.
std::optional<std::string> inline_sequence(const Value& value) {
  if (value.size() > kInlineElementsMax || !holds_only_scalars(value)) return std::nullopt;
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    text += (i == 0 ? "" : ", ") + value_text(value[i]);
  }
  if (value.is(Kind::List)) return "[" + text + "]";
  return "(" + text + (value.size() == 1 ? ",)" : ")");
}

// Protocol 2 has no bytes: it writes _codecs.encode(str, "latin1"), where each character is one
// byte.
std::optional<std::string> latin1_bytes(const Value& value) {
  const Value args = value.args();
  if (!value.callable().is_global("_codecs", "encode") || !args.is(Kind::Tuple))
    return std::nullopt;
  if (args.size() != 2 || !args[0].is(Kind::Str) || !args[1].is(Kind::Str)) return std::nullopt;
  std::string bytes;
  for (std::string_view utf8 = args[0].text(); !utf8.empty();) {
    const ckpt::Utf8Char next = ckpt::first_utf8_char(utf8);
    if (next.count_bytes == 0 || next.code_point > 0xFF) return std::nullopt;
    bytes += static_cast<char>(next.code_point);
    utf8.remove_prefix(next.count_bytes);
  }
  return bytes;
}

// What a call calls may itself be called: as many names as fit a line, and no recursion beyond.
constexpr int kCallsMax = 4;

std::string object_text(const Value& value, int calls = 0) {
  if (const auto bytes = latin1_bytes(value)) return bytes_text("bytes", *bytes);
  if (const auto tensor = ckpt::as_tensor(value)) {
    return "tensor " + std::string(name(tensor->dtype)) + " " + shape_text(tensor->shape);
  }
  const Value callable = value.callable();
  const bool is_called = callable.is(Kind::Object) && calls < kCallsMax;
  const std::string made_by = callable.is(Kind::Global) ? global_text(callable)
                              : is_called               ? object_text(callable, calls + 1)
                                                        : "(call)";
  if (value.item_count() != 0) return made_by + " of " + std::to_string(value.item_count());
  const Value args = value.args();
  const auto short_args = args.is(Kind::Tuple) ? inline_sequence(args) : std::nullopt;
  const bool has_state = value.state().has_value();
  if (short_args && !has_state && args.size() != 0) {
    return made_by + "(" + short_args->substr(1, short_args->size() - (args.size() == 1 ? 3 : 2)) +
           ")";
  }
  return made_by + " object";
}

std::string full_text(const Value& value) {
  switch (value.kind()) {
    case Kind::None: return "None";
    case Kind::Bool: return value.as_bool() ? "True" : "False";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::BigInt: return std::string(value.text());
    case Kind::Float: return float_text(value.as_float());
    case Kind::Str: return "'" + ckpt::escaped(value.text()) + "'";
    case Kind::Bytes: return bytes_text("bytes", value.text());
    case Kind::ByteArray: return bytes_text("bytearray", value.text());
    case Kind::List: return inline_sequence(value).value_or(preview("list", value));
    case Kind::Tuple: return inline_sequence(value).value_or(preview("tuple", value));
    case Kind::Dict: return "dict of " + std::to_string(value.item_count());
    case Kind::Set: return preview("set", value);
    case Kind::FrozenSet: return preview("frozenset", value);
    case Kind::Global: return global_text(value);
    case Kind::Object: return object_text(value);
    case Kind::PersistentId: return "storage";
  }
  return "?";
}

struct Child {
  std::string label;
  Value value;
};

void add_elements(const Value& value, size_t count_max, std::vector<Child>& children) {
  for (size_t i = 0; i < std::min(value.size(), count_max); ++i) {
    children.push_back({"[" + std::to_string(i) + "]", value[i]});
  }
}

void add_items(const Value& value, const char* mark, std::vector<Child>& children) {
  for (const auto& [key, item] : ckpt::items_of(value)) {
    children.push_back({mark + ckpt::escaped(key_text(key)), item});
  }
}

bool is_shown_whole(const Value& value) {
  if (is_scalar(value) || ckpt::as_tensor(value)) return true;
  if (value.is(Kind::Object) && latin1_bytes(value)) return true;
  return (value.is(Kind::List) || value.is(Kind::Tuple)) && inline_sequence(value).has_value();
}

// Random states hold hundreds of numbers: their first ones say enough.
bool is_previewed(const Value& value, size_t elements_max) {
  const bool is_sequence = value.is(Kind::List) || value.is(Kind::Tuple);
  return is_sequence && value.size() > elements_max && holds_only_scalars(value);
}

// What a tree shows below a value; `left_out` counts elements beyond the limit.
std::vector<Child> children_of(const Value& value, size_t elements_max, size_t& left_out) {
  std::vector<Child> children;
  left_out = 0;
  if (const auto tensor = ckpt::as_tensor(value)) {
    for (const ckpt::TensorAttribute& attribute : attributes_of(value.tree(), *tensor)) {
      children.push_back({"@" + ckpt::escaped(attribute.name), attribute.value});
    }
    return children;
  }
  if (is_shown_whole(value) || is_previewed(value, elements_max)) return children;
  switch (value.kind()) {
    case Kind::Dict: add_items(value, "", children); break;
    case Kind::List:
    case Kind::Tuple:
    case Kind::Set:
    case Kind::FrozenSet:
    case Kind::Object: {
      add_elements(value, elements_max, children);
      left_out = value.size() - std::min(value.size(), elements_max);
      if (!value.is(Kind::Object)) break;
      add_items(value, "", children);
      const auto state = value.state();
      const bool has_args = !value.args().is(Kind::Tuple) || value.args().size() != 0;
      if (has_args && !is_shown_whole(value.args())) children.push_back({"(args)", value.args()});
      if (state && state->is(Kind::Dict)) add_items(*state, "@", children);
      if (state && !state->is(Kind::Dict)) children.push_back({"(state)", *state});
      break;
    }
    default: break;
  }
  return children;
}

class TreePrinter {
 public:
  TreePrinter(Console& console, const TreeLimits& limits) : console_(console), limits_(limits) {}

  void run(const Value& root) {
    open_.push_back({"", root, 0, false});
    while (!open_.empty() && lines_ < limits_.lines_max) {
      const Line line = std::move(open_.back());
      open_.pop_back();
      if (line.is_end) {
        path_.erase(line.value.id());
      } else if (line.note.empty()) {
        print(line);
      } else {
        print_text(line.depth, "", line.note);
      }
    }
    if (!open_.empty()) print_text(0, "", "... (all of it with --verbose)");
  }

 private:
  struct Line {
    std::string label;
    Value value;
    size_t depth;
    bool is_end = false;  // all below `value` was printed
    std::string note = {};
  };

  void print(const Line& line) {
    const bool contains_itself = path_.contains(line.value.id());
    print_text(line.depth, line.label,
               contains_itself ? "(contains itself)" : value_text(line.value));
    if (contains_itself) return;
    size_t left_out = 0;
    std::vector<Child> children = children_of(line.value, limits_.elements_max, left_out);
    if (children.empty()) return;
    path_.insert(line.value.id());
    open_.push_back({"", line.value, 0, true});
    if (left_out != 0) {
      open_.push_back(
          {"", line.value, line.depth + 1, false, "... " + std::to_string(left_out) + " more"});
    }
    for (size_t i = children.size(); i-- > 0;) {
      open_.push_back({std::move(children[i].label), children[i].value, line.depth + 1});
    }
  }

  void print_text(size_t depth, const std::string& label, const std::string& text) {
    // Indentation stops growing where no screen would show it.
    const std::string title = label.empty() ? "" : console_.paint(Paint::Bold, label) + ": ";
    console_.print_text(std::string(2 * std::min<size_t>(depth, 40), ' ') + title + text);
    ++lines_;
  }

  Console& console_;
  TreeLimits limits_;
  size_t lines_ = 0;
  std::vector<Line> open_;
  std::unordered_set<ckpt::NodeId> path_;
};

using nlohmann::json;

// A file decides how deep and how often shared its values are: both are bounded here, so that the
// recursion below is, too.
constexpr size_t kDepthMax = 64;
constexpr size_t kValuesMax = 1'000'000;

class JsonWriter {
 public:
  json write(const Value& value, size_t depth) {
    if (depth == kDepthMax || ++values_ > kValuesMax) return {{"$truncated", true}};
    switch (value.kind()) {
      case Kind::None: return nullptr;
      case Kind::Bool: return value.as_bool();
      case Kind::Int: return value.as_int();
      case Kind::BigInt: return {{"$int", value.text()}};
      case Kind::Float: return number(value.as_float());
      case Kind::Str: return json_text(value.text());
      case Kind::Bytes: return {{"$bytes", hex(value.text())}};
      case Kind::ByteArray: return {{"$bytearray", hex(value.text())}};
      case Kind::List: return elements(value, depth);
      case Kind::Tuple: return {{"$tuple", elements(value, depth)}};
      case Kind::Set: return {{"$set", elements(value, depth)}};
      case Kind::FrozenSet: return {{"$frozenset", elements(value, depth)}};
      case Kind::Dict: return dict(value, depth);
      case Kind::Global: return {{"$global", class_name(value)}};
      case Kind::Object: return object(value, depth);
      case Kind::PersistentId: return {{"$storage", true}};
    }
    return nullptr;
  }

 private:
  bool is_full() const { return values_ > kValuesMax; }

  static json number(double value) {
    if (std::isfinite(value)) return value;
    return {{"$float", number_text(value)}};
  }

  static std::string hex(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) ckpt::append_hex(text, static_cast<unsigned char>(byte), 2);
    return text;
  }

  static std::string class_name(const Value& global) {
    return json_text(std::string(global.module()) + "." + std::string(global.name()));
  }

  json elements(const Value& value, size_t depth) {
    json array = json::array();
    for (size_t i = 0; i < value.size() && !is_full(); ++i) {
      array.push_back(write(value[i], depth + 1));
    }
    return array;
  }

  json pairs(const Value& value, size_t depth) {
    json array = json::array();
    for (size_t i = 0; i < value.item_count() && !is_full(); ++i) {
      const auto [key, item] = value.item(i);
      array.push_back(json::array({write(key, depth + 1), write(item, depth + 1)}));
    }
    return array;
  }

  // A JSON object where all keys are different strings that cannot be taken for one of our "$"
  // keys.
  json dict(const Value& value, size_t depth) {
    json object = json::object();
    for (const auto& [key, item] : ckpt::items_of(value)) {
      const bool is_plain = key.is(Kind::Str) && !key.text().starts_with('$') &&
                            !object.contains(json_text(key.text()));
      if (!is_plain) return {{"$dict", pairs(value, depth)}};
      object[json_text(key.text())] = write(item, depth + 1);
    }
    return object;
  }

  json tensor(const Value& value, const ckpt::TensorView& tensor, size_t depth) {
    json parts = {{"dtype", name(tensor.dtype)}, {"shape", tensor.shape}};
    for (const ckpt::TensorAttribute& attribute : attributes_of(value.tree(), tensor)) {
      parts["attributes"][json_text(attribute.name)] = write(attribute.value, depth + 1);
    }
    return parts;
  }

  json object(const Value& value, size_t depth) {
    if (const auto tensor = ckpt::as_tensor(value)) {
      return {{"$tensor", this->tensor(value, *tensor, depth)}};
    }
    const Value callable = value.callable();
    json parts = {{"class", callable.is(Kind::Global) ? json(class_name(callable))
                                                      : write(callable, depth + 1)},
                  {"args", write(value.args(), depth + 1)}};
    if (const auto kwargs = value.kwargs()) parts["kwargs"] = write(*kwargs, depth + 1);
    if (value.size() != 0) parts["elements"] = elements(value, depth);
    if (value.item_count() != 0) parts["items"] = pairs(value, depth);
    if (const auto state = value.state()) parts["state"] = write(*state, depth + 1);
    return {{"$object", parts}};
  }

  size_t values_ = 0;
};

}  // namespace

std::string value_text(const Value& value, size_t width_max) {
  return shortened(full_text(value), width_max);
}

void print_tree(Console& console, const Value& root, const TreeLimits& limits) {
  TreePrinter(console, limits).run(root);
}

json value_to_json(const Value& root) { return JsonWriter().write(root, 0); }

}  // namespace tools::inspect
