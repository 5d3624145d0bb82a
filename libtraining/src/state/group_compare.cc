#include "state/group_compare.h"

#include <ckpt/document.h>
#include <ckpt/error.h>

#include "model/state_names.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kStep = "step";

bool is_key(const Value& key, std::string_view name) {
  return key.is(Kind::Str) && key.text() == name;
}

std::optional<Value> find(const Value& group, const Value& key) {
  if (key.is(Kind::Int)) return group.find(key.as_int());
  return key.is(Kind::Str) ? group.find(key.text()) : std::nullopt;
}

std::string lack_of(const std::string& key, const StatedGroup& holder, const StatedGroup& other) {
  return holder.rank + " has '" + ckpt::escaped(key) + "' in this group, but " + other.rank +
         " does not";
}

// What `holder` has and `other` lacks.
std::optional<GroupDifference> first_lack(const StatedGroup& holder, const StatedGroup& other) {
  for (size_t i = 0; i < holder.group.item_count(); ++i) {
    const Value key = holder.group.item(i).first;
    const bool may_lack =
        is_key(key, "params") || (is_key(key, kStep) && is_empty_group(other.group));
    if (may_lack || find(other.group, key)) continue;
    const std::string name = ckpt::key_text(key);
    return GroupDifference{name, lack_of(name, holder, other)};
  }
  return std::nullopt;
}

}  // namespace

std::string rank_name(std::string_view path) {
  const auto rank = writer_of(path);
  const size_t slash = path.rfind('/');
  if (!rank || slash == path.npos || !path.substr(slash + 1).starts_with("layer_wise_optimizer_")) {
    return ckpt::escaped(path);
  }
  return "rank " + std::to_string(*rank) + " of " + ckpt::escaped(path.substr(0, slash));
}

bool is_empty_group(const Value& group) {
  const auto params = group.find("params");
  return params && params->is(Kind::List) && params->size() == 0;
}

std::optional<GroupDifference> group_difference(const StatedGroup& known, const StatedGroup& own) {
  for (size_t i = 0; i < own.group.item_count(); ++i) {
    const auto [key, value] = own.group.item(i);
    const auto expected = find(known.group, key);
    if (!expected || is_key(key, "params") || is_key(key, kStep)) continue;
    if (!first_difference(*expected, value)) continue;
    const std::string name = ckpt::key_text(key);
    return GroupDifference{name, "'" + ckpt::escaped(name) + "' differs from its value on " +
                                     known.rank + " in this group"};
  }
  if (auto lack = first_lack(own, known)) return lack;
  return first_lack(known, own);
}

}  // namespace optim
