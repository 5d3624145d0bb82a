#include "report/logical_names.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <training/value_at.h>

#include "args/value_place.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

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

// Calls visit(step, child) for all that child_named() finds.
template <class Visit>
void for_each_child(const Value& value, Visit visit) {
  const auto visit_items = [&](const Value& mapping, const char* mark) {
    for (const auto& [key, item] : ckpt::items_of(mapping)) {
      visit(escaped_step(mark + key_text(key)), item);
    }
  };
  const bool is_object = value.is(Kind::Object);
  if (value.is(Kind::Dict) || is_object) visit_items(value, "");
  if (value.is(Kind::List) || value.is(Kind::Tuple) || is_object) {
    for (size_t i = 0; i < value.size(); ++i) visit("/" + std::to_string(i), value[i]);
  }
  if (!is_object) return;
  if (const auto tensor = as_tensor(value)) {
    for (const ckpt::TensorAttribute& attribute : attributes_of(value.tree(), *tensor)) {
      visit(escaped_step("@" + attribute.name), attribute.value);
    }
  } else if (const auto state = value.state(); state && state->is(Kind::Dict)) {
    visit_items(*state, "@");
  }
}

// A value on the way, and how much of the typed key leads to it.
struct Waypoint {
  Value value;
  std::string pointer;
  size_t typed_bytes;
};

// Pointers to what `folded` names. A place is looked at once for each part of the key that leads
// to it: values may be shared, and keys may hold separators.
std::vector<std::string> pointers_spelled(const Value& root, std::string_view folded) {
  std::vector<std::string> pointers;
  std::set<std::pair<NodeId, size_t>> seen;
  std::vector<Waypoint> open{{root, "", 0}};
  while (!open.empty()) {
    const Waypoint place = std::move(open.back());
    open.pop_back();
    if (!seen.insert({place.value.id(), place.typed_bytes}).second) continue;
    if (place.typed_bytes == folded.size()) {
      pointers.push_back(place.pointer);
      continue;
    }
    const std::string_view left = folded.substr(place.typed_bytes);
    const size_t separator = place.pointer.empty() ? 0 : 1;
    for_each_child(place.value, [&](const std::string& step, const Value& child) {
      const std::string wanted = (separator == 0 ? "" : "/") + ckpt::folded_key(step);
      const bool is_front =
          left.starts_with(wanted) && (left.size() == wanted.size() || left[wanted.size()] == '/');
      if (!is_front || wanted.size() == separator) return;
      open.push_back({child, place.pointer + step, place.typed_bytes + wanted.size()});
    });
  }
  return pointers;
}

}  // namespace

std::vector<std::string> pointers_near(const Value& root) {
  constexpr size_t kPointersMax = 20'000, kPointerBytesMax = 256;
  std::vector<Waypoint> places{{root, "", 0}};
  std::set<NodeId> seen;
  std::vector<std::string> pointers;
  for (size_t i = 0; i < places.size(); ++i) {
    const Waypoint place = places[i];  // the list grows
    if (!seen.insert(place.value.id()).second) continue;
    for_each_child(place.value, [&](const std::string& step, const Value& child) {
      if (places.size() > kPointersMax) return;
      if (place.pointer.size() + step.size() > kPointerBytesMax) return;
      places.push_back({child, place.pointer + step, 0});
      pointers.push_back(place.pointer + step);
    });
  }
  return pointers;
}

std::vector<NamedValue> values_named(const Value& root, std::string_view typed,
                                     ckpt::KeyMatch match) {
  std::vector<std::string> pointers{std::string(typed)};
  if (match == ckpt::KeyMatch::Spelling) pointers = pointers_spelled(root, ckpt::folded_key(typed));
  std::ranges::sort(pointers);
  std::vector<NamedValue> found;
  for (const std::string& pointer : pointers) {
    if (const auto value = value_at(root, pointer)) found.push_back({pointer, *value});
  }
  return found;
}

std::optional<Value> value_at(const Value& root, std::string_view pointer) {
  std::optional<Value> value = root;
  while (value && !pointer.empty()) {
    if (pointer.front() != '/') return std::nullopt;
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    value = child_named(*value, unescaped_step(std::string(pointer.substr(0, end))));
    pointer.remove_prefix(end);
  }
  return value;
}

}  // namespace optim
