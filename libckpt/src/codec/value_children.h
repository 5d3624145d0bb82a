#pragma once

#include <ckpt/value.h>

namespace ckpt {

// Calls visit(child) for all that a value holds, in the order in which a pickle makes an object and
// fills it; the names of a class are not held.
template <class Visit>
void for_each_child(const Value& value, Visit visit) {
  const bool is_object = value.is(Kind::Object), is_dict = value.is(Kind::Dict);
  if (value.is(Kind::PersistentId)) visit(value.persistent_id());
  if (is_object) {
    visit(value.callable());
    visit(value.args());
    if (const auto kwargs = value.kwargs()) visit(*kwargs);
    if (const auto state = value.state()) visit(*state);
  }
  const bool is_sequence = value.is(Kind::List) || value.is(Kind::Tuple) || value.is(Kind::Set) ||
                           value.is(Kind::FrozenSet);
  const size_t elements = is_object || is_sequence ? value.size() : 0;
  for (size_t i = 0; i < elements; ++i) visit(value[i]);
  const size_t items = is_object || is_dict ? value.item_count() : 0;
  for (size_t i = 0; i < items; ++i) {
    visit(value.item(i).first);
    visit(value.item(i).second);
  }
}

}  // namespace ckpt
