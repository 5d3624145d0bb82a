#include "format/values/nesting.h"

#include <vector>

namespace ckpt {

bool Nesting::holds_leaf(const Value& list) const {
  for (size_t i = 0; i < list.size(); ++i) {
    if (as_mapping(list[i]) || as_tensor(list[i])) return true;
  }
  return false;
}

// Goes on until the list is known to be entered, all of it was seen, or an unknown list is met.
void Nesting::advance(Search& search, std::optional<Value>& unknown) {
  bool& entered = entered_[search.list.id()];
  for (; !entered && search.next < search.list.size(); ++search.next) {
    const Value element = search.list[search.next];
    if (!element.is(Kind::List)) continue;
    const auto known = entered_.find(element.id());
    if (known == entered_.end()) {
      unknown = element;
      return;
    }
    entered = known->second;
  }
}

bool Nesting::is_entered(const Value& list) {
  std::vector<Search> open;
  std::optional<Value> unknown;
  if (!entered_.contains(list.id())) unknown = list;
  while (unknown || !open.empty()) {
    if (unknown) {
      entered_[unknown->id()] = holds_leaf(*unknown);
      open.push_back({*unknown});
      unknown.reset();
    }
    advance(open.back(), unknown);
    if (!unknown) open.pop_back();
  }
  return entered_.at(list.id());
}

}  // namespace ckpt
