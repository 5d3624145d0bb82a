// One parameter group out of those that ranks repeat.
#include "layouts/parts/rank_groups.h"

#include <algorithm>
#include <span>

#include "grid/stated_groups.h"
#include "state/value_compare.h"

namespace optim {

void RankGroups::add(const GroupPlace& where, const Stated& group) {
  ChainedOptimizerState& owner = view_.chain[where.first];
  compare_with_other_ranks(where, group);
  ckpt::ValueTree& tree = common_.tree();
  if (owner.groups.size() == where.second) {
    owner.groups.push_back(common_.carry(group.value, group.document));
    tree.erase(owner.groups.back(), "params");
    return;
  }
  const ckpt::NodeId known = owner.groups[where.second];
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
  std::vector<ckpt::Value> stated;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!list.value[i].is(ckpt::Kind::Dict)) (list.place / i).corrupt("is not a dict");
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
    add({optimizer, group}, {stated[place], list.document, list.place / place, list.rank});
  }
}

// Against the first rank that holds parameters of the group: its copy is complete.
void RankGroups::compare_with_other_ranks(const GroupPlace& where, const Stated& group) {
  const StatedGroup own{group.value, group.rank};
  const auto [known, is_first] = stated_.try_emplace(where, own);
  if (is_first) return;
  if (const auto difference = group_difference(known->second, own)) {
    (group.place / difference->key).corrupt(difference->problem, kMixedFilesHint);
  }
  if (is_empty_group(known->second.group)) known->second = own;
}

void require_state_in_buffers(const ckpt::Value& inner, const Place& place) {
  const auto state = inner.find("state");
  if (!state || (state->is(ckpt::Kind::Dict) && state->item_count() == 0)) return;
  (place / "state").unsupported("holds state of a DistributedOptimizer beside its flat buffers");
}

}  // namespace optim
