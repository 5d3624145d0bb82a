// Values, place by place.
#include <algorithm>
#include <unordered_set>

#include <ckpt/document.h>

#include "base/text_map.h"
#include "compare/compare.h"
#include "format/values/enum_member.h"
#include "format/values/json_pointer.h"

namespace ckpt {
namespace {

using Maybe = std::optional<Value>;

struct Place {
  PointerPath::Step step;
  Maybe a, b;
};

class TreeComparison {
 public:
  TreeComparison(const CanonicalEncoder& a, const CanonicalEncoder& b, size_t details_max,
                 std::vector<PlaceDifference>& details)
      : a_encoder_(a), b_encoder_(b), details_max_(details_max), details_(details) {}

  uint64_t run(const Value& a, const Value& b) {
    open_.push_back({{}, a, b});
    while (!open_.empty()) {
      const Place place = std::move(open_.back());
      open_.pop_back();
      visit(place);
    }
    return count_;
  }

 private:
  void visit(const Place& place) {
    pointer_.enter(place.step);
    if (place.a && place.b) {
      if (is_equal(*place.a, *place.b)) return;
      // Shared values, and values that contain themselves, are compared once.
      const uint64_t pair = uint64_t{place.a->id()} << 32 | place.b->id();
      if (!visited_.insert(pair).second) return;
      if (open_children(place)) return;
    }
    ++count_;
    if (details_.size() >= details_max_) return;
    const bool may_be_one = place.a && place.b && may_be_one_member(*place.a, *place.b);
    details_.push_back({pointer_.whole(), place.a, place.b, may_be_one});
  }

  bool is_equal(const Value& a, const Value& b) const {
    return a_encoder_.encoding(a.id()) == b_encoder_.encoding(b.id());
  }

  // False where the two differ as a whole: other kinds or types, tensors, or an order of equal
  // parts.
  bool open_children(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    if (a.kind() != b.kind()) return false;
    const size_t first = open_.size();
    switch (a.kind()) {
      case Kind::List:
      case Kind::Tuple: open_elements(place); break;
      case Kind::Dict: open_items(a, b, ""); break;
      case Kind::Object:
        if (!open_object(place)) return false;
        break;
      default: return false;
    }
    const bool found = std::any_of(open_.begin() + static_cast<ptrdiff_t>(first), open_.end(),
                                   [this](const Place& child) { return differs(child); });
    if (!found) open_.resize(first, Place());
    std::reverse(open_.begin() + static_cast<ptrdiff_t>(first), open_.end());
    return found;
  }

  bool differs(const Place& place) const {
    return !place.a || !place.b || !is_equal(*place.a, *place.b);
  }

  void open_elements(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      open_.push_back({pointer_.child(i), i < a.size() ? Maybe(a[i]) : std::nullopt,
                       i < b.size() ? Maybe(b[i]) : std::nullopt});
    }
  }

  void open_items(const Value& a, const Value& b, const char* mark) {
    TextMap<Value> in_b;
    for (size_t i = 0; i < b.item_count(); ++i) {
      const auto [key, value] = b.item(i);
      in_b.insert_or_assign(b_encoder_.encoding(key.id()), value);
    }
    for (size_t i = 0; i < a.item_count(); ++i) {
      const auto [key, value] = a.item(i);
      const auto twin = in_b.find(a_encoder_.encoding(key.id()));
      open_.push_back({pointer_.child(mark + key_text(key)), value,
                       twin == in_b.end() ? std::nullopt : Maybe(twin->second)});
      if (twin != in_b.end()) in_b.erase(twin);
    }
    for (size_t i = 0; i < b.item_count(); ++i) {
      const auto [key, value] = b.item(i);
      if (!in_b.contains(b_encoder_.encoding(key.id()))) continue;
      open_.push_back({pointer_.child(mark + key_text(key)), std::nullopt, value});
    }
  }

  // Objects of one class, built from equal arguments: their elements, items and attributes differ.
  bool open_object(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    if (as_tensor(a) || as_tensor(b) || signal_number(a) || signal_number(b)) return false;
    if (!is_equal(a.callable(), b.callable()) || !is_equal(a.args(), b.args())) return false;
    if (!open_state(place)) return false;
    open_elements(place);
    open_items(a, b, "");
    return true;
  }

  bool open_state(const Place& place) {
    const Maybe a = place.a->state(), b = place.b->state();
    if (!a && !b) return true;
    if (!a || !b) return false;
    if (is_equal(*a, *b)) return true;
    if (!a->is(Kind::Dict) || !b->is(Kind::Dict)) return false;
    open_items(*a, *b, "@");
    return true;
  }

  const CanonicalEncoder& a_encoder_;
  const CanonicalEncoder& b_encoder_;
  size_t details_max_;
  std::vector<PlaceDifference>& details_;
  std::vector<Place> open_;
  PointerPath pointer_;
  std::unordered_set<uint64_t> visited_;
  uint64_t count_ = 0;
};

}  // namespace

uint64_t compare_trees(const EncodedValue& a, const EncodedValue& b, size_t details_max,
                       std::vector<PlaceDifference>& details) {
  return TreeComparison(a.encoder, b.encoder, details_max, details).run(a.value, b.value);
}

}  // namespace ckpt
