// What ranks say of an optimizer beside what every optimizer has.
#include "layouts/parts/rank_items.h"

#include <algorithm>

namespace optim {

void RankItems::add(const State& state, std::initializer_list<std::string_view> known) {
  ranks_[state.optimizer].insert(state.rank);
  for (size_t i = 0; i < state.value.item_count(); ++i) {
    const auto [key, value] = state.value.item(i);
    if (!key.is(ckpt::Kind::Str)) {
      (state.place / ckpt::key_text(key)).unsupported("the key is not a string");
    }
    if (std::ranges::find(known, key.text()) != known.end()) continue;
    item_of(state.optimizer, state.is_inner, key.text())
        .stated.push_back({state.rank, &state.document, value, state.place / key.text()});
  }
}

void RankItems::add(uint32_t optimizer, std::string_view key, Stated stated) {
  item_of(optimizer, false, key).stated.push_back(std::move(stated));
}

RankItems::Item& RankItems::item_of(uint32_t optimizer, bool is_inner, std::string_view key) {
  const auto found = std::ranges::find_if(items_, [&](const Item& item) {
    return item.optimizer == optimizer && item.is_inner == is_inner && item.key == key;
  });
  if (found != items_.end()) return *found;
  return items_.emplace_back(Item{optimizer, is_inner, std::string(key), {}});
}

bool RankItems::is_one_value(const Item& item) const {
  return item.stated.size() == ranks_.at(item.optimizer).size() &&
         std::all_of(item.stated.begin() + 1, item.stated.end(),
                     [&](const Stated& one) { return are_equal_(item.stated.front(), one); });
}

void RankItems::settle(CommonBuilder& common, TrainingState& view) const {
  const auto carry = [&](const Stated& stated) {
    return common.carry(stated.value, *stated.document);
  };
  for (const Item& item : items_) {
    ChainedOptimizerState& optimizer = view.chain[item.optimizer];
    if (is_one_value(item)) {
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
