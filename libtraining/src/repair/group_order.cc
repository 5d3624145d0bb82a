#include "repair/group_order.h"

#include "grid/stated_groups.h"

namespace optim {
namespace {

using ckpt::Value;

constexpr std::string_view kDecay = "weight_decay", kMultiplier = "wd_mult";

bool differ_in_decay_alone(const Value& a, const Value& b) {
  for (const std::string_view key : {"lr_mult", "is_expert_parallel", "is_decoupled_lr"}) {
    const auto one = a.find(key), other = b.find(key);
    if (one.has_value() != other.has_value()) return false;
    if (one && ckpt::key_text(*one) != ckpt::key_text(*other)) return false;
  }
  return true;
}

// Whether the first must not decay weights and does, and the second must and does not.
bool are_swapped(const Value& without, const Value& with) {
  const auto decay = number_in(without, kDecay), other_decay = number_in(with, kDecay);
  const auto multiplier = number_in(without, kMultiplier), other = number_in(with, kMultiplier);
  return decay && other_decay && multiplier && other && *multiplier == 0 && *other != 0 &&
         *decay != 0 && *other_decay == 0 && differ_in_decay_alone(without, with);
}

}  // namespace

std::vector<SwappedGroups> find_swapped_groups(const TrainingState& state) {
  std::vector<SwappedGroups> swapped;
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const std::vector<ckpt::NodeId>& groups = state.chain[optimizer].groups;
    const auto value = [&](size_t i) { return state.common.tree.value(groups[i]); };
    std::vector<bool> is_paired(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t j = 0; j < groups.size(); ++j) {
        if (is_paired[i] || is_paired[j] || !are_swapped(value(i), value(j))) continue;
        is_paired[i] = is_paired[j] = true;
        swapped.push_back({optimizer, i, j});
      }
    }
  }
  return swapped;
}

void swap_back(const SwappedGroups& groups, TrainingState& state) {
  ckpt::ValueTree& tree = state.common.tree;
  const std::vector<ckpt::NodeId>& nodes = state.chain[groups.optimizer].groups;
  const ckpt::NodeId without = nodes[groups.without_decay], with = nodes[groups.with_decay];
  const ckpt::NodeId decay = tree.value(without).find(kDecay)->id();
  const ckpt::NodeId none = tree.value(with).find(kDecay)->id();
  tree.put(without, kDecay, none);
  tree.put(with, kDecay, decay);
}

}  // namespace optim
