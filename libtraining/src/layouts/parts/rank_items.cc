// What ranks say of an optimizer beside what every optimizer has.
#include "layouts/parts/rank_items.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "grid/target_groups.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

// The catalog's entries of the tensors in a value that lies at `place`; null for one without.
std::vector<const TensorEntry*> tensors_at(const OpenedTraining& source, const Value& value,
                                           const Place& place) {
  std::vector<const TensorEntry*> found;
  for (const ckpt::TensorAt& tensor : ckpt::tensors_in(value)) {
    found.push_back(source.catalog().find_tensor(place.pointer + tensor.pointer, place.file));
  }
  return found;
}

}  // namespace

void RankItems::add(const State& state, std::initializer_list<std::string_view> known) {
  ranks_[state.optimizer].insert(state.rank);
  for (const auto& [key, value] : ckpt::items_of(state.value)) {
    if (!key.is(Kind::Str)) {
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

void RankItems::settle(CommonBuilder& common, TrainingState& state) const {
  const auto carry = [&](const Stated& stated) {
    return common.carry(stated.value, *stated.document);
  };
  for (const Item& item : items_) {
    ChainedOptimizerState& optimizer = state.chain[item.optimizer];
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
    state.rank_items.push_back(std::move(own));
  }
}

// One parameter group out of those that ranks repeat.
void RankGroups::add(const GroupPlace& where, const Stated& group) {
  ChainedOptimizerState& owner = state_.chain[where.first];
  compare_with_other_ranks(where, group);
  ValueTree& tree = common_.tree();
  if (owner.groups.size() == where.second) {
    owner.groups.push_back(common_.carry(group.value, group.document));
    tree.erase(owner.groups.back(), "params");
    return;
  }
  const NodeId known = owner.groups[where.second];
  const auto step = group.value.find("step"), known_step = tree.value(known).find("step");
  if (step && !known_step) {
    tree.put(known, "step", common_.carry(*step, group.document));
  } else if (step && known_step && first_difference(*step, *known_step)) {
    (group.place / "step").corrupt("its step count differs between ranks", kMixedFilesHint);
  }
}

// Up to 0.12 a pipeline stage lists its groups in the order in which it meets their parameters.
void RankGroups::add_list(uint32_t optimizer, const std::vector<ParamGroup>& groups,
                          const Stated& list) {
  const std::span<const ParamGroup> own = groups_of_optimizer(groups, optimizer);
  if (list.value.size() != own.size()) {
    list.place.corrupt("holds " + std::to_string(list.value.size()) +
                       " groups, but the model's parameters need " + std::to_string(own.size()));
  }
  std::vector<Value> stated;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!list.value[i].is(Kind::Dict)) (list.place / i).corrupt("is not a dict");
    // Taken for empty, it could lack its step.
    if (list.value[i].find("params")) {
      (list.place / i / "params")
          .corrupt("is there, but a DistributedOptimizer's groups list none");
    }
    stated.push_back(list.value[i]);
  }
  const std::vector<size_t> places = match_stated_groups(stated, own);
  for (size_t group = 0; group < places.size(); ++group) {
    const size_t place = places[group];
    add({optimizer, group},
        {stated[place], list.document, list.place / place, list.rank, list.is_stepped});
  }
}

// Against the first rank that holds parameters of the group: its copy is complete.
void RankGroups::compare_with_other_ranks(const GroupPlace& where, const Stated& group) {
  const StatedGroup own{group.value, group.rank, group.is_stepped};
  const auto [known, is_first] = stated_.try_emplace(where, own);
  if (is_first) return;
  if (const auto difference = group_difference(known->second, own)) {
    (group.place / difference->key).corrupt(difference->problem, kMixedFilesHint);
  }
  if (is_unstepped(known->second)) known->second = own;
}

void require_state_in_buffers(const Value& inner, const Place& place) {
  const auto state = inner.find("state");
  if (!state || (state->is(Kind::Dict) && state->item_count() == 0)) return;
  (place / "state").unsupported("holds state of a DistributedOptimizer beside its flat buffers");
}

bool are_equal_values(const OpenedTraining& source, const PlacedValue& a, const PlacedValue& b) {
  if (first_difference(a.value, b.value)) return false;
  const auto tensors_a = tensors_at(source, a.value, a.place);
  const auto tensors_b = tensors_at(source, b.value, b.place);
  return std::ranges::equal(tensors_a, tensors_b, [&](const auto* one, const auto* other) {
    return one != nullptr && other != nullptr && ckpt::same_bytes(*one, source, *other, source);
  });
}

RankItems::AreEqual equal_items_of(const OpenedTraining& source) {
  return [&source](const RankItems::Stated& a, const RankItems::Stated& b) {
    return are_equal_values(source, {a.value, a.place}, {b.value, b.place});
  };
}

}  // namespace optim
