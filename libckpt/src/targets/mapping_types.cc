#include "targets/mapping_types.h"

#include <algorithm>

#include "format/values/json_pointer.h"

namespace ckpt {
namespace {

bool is_same_global(const Value& a, const Value& b) {
  return a.is(Kind::Global) && b.is(Kind::Global) && a.is_global(b.module(), b.name());
}

// The factory of a defaultdict. What a Counter is called with are its items.
bool has_same_arguments(const Value& a, const Value& b) {
  if (a.args().size() != b.args().size()) return false;
  return a.args().size() == 0 || a.args()[0].is(Kind::Dict) ||
         is_same_global(a.args()[0], b.args()[0]);
}

bool has_same_type(const Value& a, const Value& b) {
  if (&a.tree() == &b.tree() && a.id() == b.id()) return true;
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::Dict)) return true;
  return is_same_global(a.callable(), b.callable()) && has_same_arguments(a, b) && !a.state() &&
         !b.state();
}

}  // namespace

MappingTypes::MappingTypes(const std::vector<PlainEntry>& entries) {
  for (const PlainEntry& entry : entries) {
    std::string place, pointer;
    for (const PathStep& step : entry.path) {
      if (step.holder) add(place, pointer, *step.holder);
      enter(place, step);
      pointer += pointer_step(step.text);
    }
  }
}

std::optional<Value> MappingTypes::at(const std::string& place) const {
  const auto found = types_.find(place);
  return found == types_.end() || mixed_.contains(place) ? std::nullopt
                                                         : std::optional(found->second);
}

TextMap<Value> MappingTypes::objects() const {
  TextMap<Value> objects;
  for (const auto& [place, mapping] : types_) {
    if (mapping.is(Kind::Object) && !mixed_.contains(place)) objects.emplace(place, mapping);
  }
  return objects;
}

void MappingTypes::enter(std::string& place, const PathStep& step) {
  const std::string text = typed_step(step);
  place += std::to_string(text.size()) + ":" + text;
}

void MappingTypes::add(const std::string& place, const std::string& pointer, const Value& holder) {
  const auto [known, is_new] = types_.try_emplace(place, holder);
  if (is_new || has_same_type(known->second, holder)) return;
  if (mixed_.insert(place).second) lose(pointer, known->second);
  lose(pointer, holder);
}

void MappingTypes::lose(const std::string& pointer, const Value& mapping) {
  if (!mapping.is(Kind::Object)) return;
  const bool has_attributes = mapping.state().has_value();
  NotCarried lost{pointer.empty() ? "/" : pointer,
                  std::string(mapping.callable().name()) + " becomes a dict in a new file" +
                      (has_attributes ? ", and its attributes are lost" : ""),
                  std::nullopt, !has_attributes};
  const auto is_listed = [&](const NotCarried& other) {
    return other.what == lost.what && other.reason == lost.reason;
  };
  if (std::ranges::none_of(losses_, is_listed)) losses_.push_back(std::move(lost));
}

}  // namespace ckpt
