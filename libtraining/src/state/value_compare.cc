#include "state/value_compare.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include <ckpt/diff.h>

#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

// Enough to find a place; deeper ones share what is shown of it.
constexpr size_t kPointerBytesMax = 1000;

std::string below(const std::string& pointer, const std::string& step) {
  return pointer.size() > kPointerBytesMax ? pointer : pointer + "/" + step;
}

class Comparison {
 public:
  std::optional<std::string> run(const Value& a, const Value& b) {
    open_.push_back({a, b, ""});
    while (!open_.empty()) {
      const Pair pair = std::move(open_.back());
      open_.pop_back();
      if (!same(pair)) return pair.pointer;
    }
    return std::nullopt;
  }

 private:
  struct Pair {
    Value a, b;
    std::string pointer;
  };

  bool same(const Pair& pair) {
    const Value &a = pair.a, &b = pair.b;
    if (a.kind() != b.kind()) return ckpt::one_member(a, b) == ckpt::OneMember::Yes;
    switch (a.kind()) {
      case Kind::None: return true;
      case Kind::Bool:
      case Kind::Int: return a.as_int() == b.as_int();
      case Kind::Float:
        return std::bit_cast<uint64_t>(a.as_float()) == std::bit_cast<uint64_t>(b.as_float());
      case Kind::Str:
      case Kind::Bytes:
      case Kind::ByteArray:
      case Kind::BigInt: return a.text() == b.text();
      case Kind::Global: return b.is_global(a.module(), a.name());
      default: break;
    }
    if (ckpt::one_member(a, b) == ckpt::OneMember::Yes) return true;
    // A pair that is being compared, or was, need not be entered again.
    if (!entered_.emplace(a.id(), b.id()).second) return true;
    return same_content(pair);
  }

  bool same_content(const Pair& pair) {
    const Value &a = pair.a, &b = pair.b;
    switch (a.kind()) {
      case Kind::Dict: return enter_items(pair);
      case Kind::PersistentId:
        enter(a.persistent_id(), b.persistent_id(), pair.pointer);
        return true;
      case Kind::Object: return enter_object(pair);
      default: return enter_elements(pair);
    }
  }

  void enter(const Value& a, const Value& b, std::string pointer) {
    open_.push_back({a, b, std::move(pointer)});
  }

  bool enter_elements(const Pair& pair) {
    if (pair.a.size() != pair.b.size()) return false;
    for (size_t i = pair.a.size(); i-- > 0;) {
      enter(pair.a[i], pair.b[i], below(pair.pointer, std::to_string(i)));
    }
    return true;
  }

  bool enter_items(const Pair& pair) {
    if (pair.a.item_count() != pair.b.item_count()) return false;
    for (size_t i = pair.a.item_count(); i-- > 0;) {
      const auto [key_a, value_a] = pair.a.item(i);
      const auto [key_b, value_b] = pair.b.item(i);
      const std::string pointer = below(pair.pointer, ckpt::key_text(key_a));
      enter(value_a, value_b, pointer);
      enter(key_a, key_b, pointer);
    }
    return true;
  }

  bool enter_object(const Pair& pair) {
    const Value &a = pair.a, &b = pair.b;
    const auto tensor_a = ckpt::as_tensor(a), tensor_b = ckpt::as_tensor(b);
    if (tensor_a && tensor_b) {
      return tensor_a->dtype == tensor_b->dtype && tensor_a->shape == tensor_b->shape;
    }
    const bool states = a.state().has_value();
    if (a.construction() != b.construction() || states != b.state().has_value()) return false;
    enter(a.callable(), b.callable(), pair.pointer);
    enter(a.args(), b.args(), pair.pointer);
    if (states) enter(*a.state(), *b.state(), pair.pointer);
    return enter_elements(pair) && enter_items(pair);
  }

  std::vector<Pair> open_;
  std::set<std::pair<NodeId, NodeId>> entered_;
};

// --- parameter groups ---

constexpr std::string_view kStep = "step";

bool is_key(const Value& key, std::string_view name) {
  return key.is(Kind::Str) && key.text() == name;
}

std::optional<Value> find(const Value& group, const Value& key) {
  if (key.is(Kind::Int)) return group.find(key.as_int());
  return key.is(Kind::Str) ? group.find(key.text()) : std::nullopt;
}

// What `holder` has and `other` lacks.
std::optional<GroupDifference> first_lack(const StatedGroup& holder, const StatedGroup& other) {
  for (const auto& [key, value] : ckpt::items_of(holder.group)) {
    const bool may_lack = is_key(key, "params") || (is_key(key, kStep) && is_unstepped(other));
    if (may_lack || find(other.group, key)) continue;
    const std::string name = ckpt::key_text(key);
    return GroupDifference{name, holder.rank + " has '" + ckpt::escaped(name) +
                                     "' in this group, but " + other.rank + " does not"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> first_difference(const Value& a, const Value& b) {
  return Comparison().run(a, b);
}

bool are_alike(const ValueTree& tree, const ChainedOptimizerState& a,
               const ChainedOptimizerState& b) {
  const auto is_same = [&](const auto& one, const auto& other) {
    return one.first == other.first &&
           !first_difference(tree.value(one.second), tree.value(other.second));
  };
  return a.step_layout == b.step_layout && a.step_bytes == b.step_bytes &&
         a.step_number == b.step_number && std::ranges::equal(a.others, b.others, is_same) &&
         std::ranges::equal(a.inner_others, b.inner_others, is_same);
}

std::string rank_name(std::string_view path) {
  const auto rank = writer_of(path);
  const size_t slash = path.rfind('/');
  if (!rank || slash == path.npos || !path.substr(slash + 1).starts_with("layer_wise_optimizer_")) {
    return ckpt::escaped(path);
  }
  return "rank " + std::to_string(*rank) + " of " + ckpt::escaped(path.substr(0, slash));
}

bool is_unstepped(const StatedGroup& group) {
  const auto params = group.group.find("params");
  return !group.is_stepped || (params && params->is(Kind::List) && params->size() == 0);
}

std::optional<GroupDifference> group_difference(const StatedGroup& known, const StatedGroup& own) {
  for (const auto& [key, value] : ckpt::items_of(own.group)) {
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
