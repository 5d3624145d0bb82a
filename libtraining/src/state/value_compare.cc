#include "state/value_compare.h"

#include <bit>
#include <set>
#include <utility>
#include <vector>

#include <ckpt/document.h>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

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
    if (a.kind() != b.kind()) return false;
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
  std::set<std::pair<ckpt::NodeId, ckpt::NodeId>> entered_;
};

}  // namespace

std::optional<std::string> first_difference(const Value& a, const Value& b) {
  return Comparison().run(a, b);
}

}  // namespace optim
