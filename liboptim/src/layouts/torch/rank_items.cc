// What rank files of a `torch` checkpoint say of an optimizer beside what every optimizer has.
#include "layouts/torch/rank_items.h"

#include <algorithm>

#include <ckpt/tensor_stream.h>

#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::TensorEntry;

// The catalog's entries of the tensors in a value that lies at `place`; null for one without.
std::vector<const TensorEntry*> tensors_at(const ckpt::Checkpoint& source, const ckpt::Value& value,
                                           const Place& place) {
  std::vector<const TensorEntry*> found;
  for (const ckpt::TensorAt& tensor : ckpt::tensors_in(value)) {
    found.push_back(source.catalog().find_tensor(place.pointer + tensor.pointer, place.file));
  }
  return found;
}

}  // namespace

bool are_equal_values(const ckpt::Checkpoint& source, const PlacedValue& a, const PlacedValue& b) {
  if (first_difference(a.value, b.value)) return false;
  const auto tensors_a = tensors_at(source, a.value, a.place);
  const auto tensors_b = tensors_at(source, b.value, b.place);
  return std::ranges::equal(tensors_a, tensors_b, [&](const auto* one, const auto* other) {
    return one != nullptr && other != nullptr && ckpt::same_bytes(*one, source, *other, source);
  });
}

void RankItems::add(const State& state, std::initializer_list<std::string_view> known) {
  for (size_t i = 0; i < state.value.item_count(); ++i) {
    const auto [key, value] = state.value.item(i);
    if (!key.is(Kind::Str)) {
      (state.place / ckpt::key_text(key)).unsupported("the key is not a string");
    }
    if (std::ranges::find(known, key.text()) != known.end()) continue;
    item_of(state, key.text())
        .stated.push_back({state.rank, &state.document, value.id(), state.place / key.text()});
  }
}

RankItems::Item& RankItems::item_of(const State& state, std::string_view key) {
  const auto found = std::ranges::find_if(items_, [&](const Item& item) {
    return item.optimizer == state.optimizer && item.is_inner == state.is_inner && item.key == key;
  });
  if (found != items_.end()) return *found;
  return items_.emplace_back(Item{state.optimizer, state.is_inner, std::string(key), {}});
}

bool RankItems::are_equal(const std::vector<Stated>& stated) const {
  const auto placed = [](const Stated& one) {
    return PlacedValue{one.document->tree.value(one.node), one.place};
  };
  return std::all_of(stated.begin() + 1, stated.end(), [&](const Stated& one) {
    return are_equal_values(source_, placed(stated.front()), placed(one));
  });
}

void RankItems::settle(uint32_t rank_count, CommonBuilder& common, TrainingState& view) const {
  const auto carry = [&](const Stated& stated) {
    return common.carry(stated.document->tree.value(stated.node), *stated.document);
  };
  for (const Item& item : items_) {
    ChainedOptimizerState& optimizer = view.chain[item.optimizer];
    if (item.stated.size() == rank_count && are_equal(item.stated)) {
      (item.is_inner ? optimizer.inner_others : optimizer.others)
          .emplace_back(item.key, carry(item.stated.front()));
      continue;
    }
    RankItem own{rank_item_name(item.optimizer, item.is_inner, item.key),
                 item.key,
                 item.optimizer,
                 item.is_inner,
                 {}};
    for (const Stated& stated : item.stated) own.values.emplace_back(stated.rank, carry(stated));
    view.rank_items.push_back(std::move(own));
  }
}

}  // namespace optim
