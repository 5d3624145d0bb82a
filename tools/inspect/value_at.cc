#include "inspect/value_at.h"

#include <algorithm>
#include <string>

namespace tools::inspect {
namespace {

using ckpt::Kind;
using ckpt::Value;

// RFC 6901: ~1 is a slash, ~0 a tilde.
std::string unescaped(std::string_view step) {
  std::string text;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool is_escape = step[i] == '~' && i + 1 < step.size();
    if (is_escape && (step[i + 1] == '0' || step[i + 1] == '1')) {
      text += step[++i] == '1' ? '/' : '~';
    } else {
      text += step[i];
    }
  }
  return text;
}

std::optional<Value> item_named(const Value& value, std::string_view name) {
  for (size_t i = value.item_count();
       i-- > 0;) {  // of equal keys the last one counts, as in Python
    const auto [key, item] = value.item(i);
    if (key_text(key) == name) return item;
  }
  return std::nullopt;
}

std::optional<Value> element_numbered(const Value& value, const std::string& number) {
  for (size_t i = 0; i < value.size() && number.size() < 20; ++i) {
    if (std::to_string(i) == number) return value[i];
  }
  return std::nullopt;
}

std::optional<Value> attribute_named(const Value& object, std::string_view name) {
  if (const auto tensor = as_tensor(object)) {
    for (const ckpt::TensorAttribute& attribute : attributes_of(object.tree(), *tensor)) {
      if (attribute.name == name) return attribute.value;
    }
    return std::nullopt;
  }
  const auto state = object.state();
  return state && state->is(Kind::Dict) ? item_named(*state, name) : std::nullopt;
}

std::optional<Value> child_named(const Value& value, const std::string& step) {
  const bool has_items = value.is(Kind::Dict) || value.is(Kind::Object);
  const bool has_elements = value.is(Kind::List) || value.is(Kind::Tuple) || value.is(Kind::Object);
  if (has_items) {
    if (const auto item = item_named(value, step)) return item;
  }
  if (value.is(Kind::Object) && step.starts_with('@')) {
    return attribute_named(value, std::string_view(step).substr(1));
  }
  return has_elements ? element_numbered(value, step) : std::nullopt;
}

}  // namespace

std::optional<Value> value_at(const Value& root, std::string_view pointer) {
  std::optional<Value> value = root;
  while (value && !pointer.empty()) {
    if (pointer.front() != '/') return std::nullopt;
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    value = child_named(*value, unescaped(pointer.substr(0, end)));
    pointer.remove_prefix(end);
  }
  return value;
}

}  // namespace tools::inspect
