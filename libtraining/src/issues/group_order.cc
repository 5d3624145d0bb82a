// Two groups of an optimizer, of which the one that must not decay weights (wd_mult 0) does, and
// the one that must does not: what is left where groups were taken by their place in a list, as
// Megatron-Core up to 0.15 does when it loads (DistributedOptimizer.load_state_dict).

#include "grid/target_groups.h"
#include "issues/issue.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kSwappedGroups =
    "its group and another one have each other's weight_decay, by their wd_mult";

struct SwappedGroups {
  uint32_t optimizer = 0;
  size_t without_decay = 0, with_decay = 0;  // groups, by what wd_mult says
};

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

std::vector<SwappedGroups> find_swapped_groups(const TrainingState& state) {
  std::vector<SwappedGroups> swapped;
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const std::vector<NodeId>& groups = state.chain[optimizer].groups;
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

// Gives each its own weight_decay.
void swap_back(const SwappedGroups& groups, TrainingState& state) {
  ValueTree& tree = state.common.tree;
  const std::vector<NodeId>& nodes = state.chain[groups.optimizer].groups;
  const NodeId without = nodes[groups.without_decay], with = nodes[groups.with_decay];
  const NodeId decay = tree.value(without).find(kDecay)->id();
  const NodeId none = tree.value(with).find(kDecay)->id();
  tree.put(without, kDecay, none);
  tree.put(with, kDecay, decay);
}

ckpt::Where place_of(const SwappedGroups& groups) {
  return {.file = {},
          .key = "optimizer." + std::to_string(groups.optimizer) + "/param_groups/" +
                 std::to_string(groups.without_decay) + "/weight_decay"};
}

RepairFinding find_group_order(const FiledState& state, const OpenedTraining&) {
  const auto swapped = find_swapped_groups(state);
  RepairFinding finding{.kind = RepairKind::GroupOrder,
                        .text = "every group has its own weight decay"};
  if (swapped.empty()) return finding;
  finding.verdict = RepairFinding::Verdict::Mendable;
  finding.compared_count = finding.right_count = swapped.size();
  finding.text = counted(swapped.size(), "pair") +
                 " of groups have each other's weight_decay; wd_mult says what each has to have";
  return finding;
}

RepairFinding mend_group_order(RepairedState& repaired, const OpenedTraining& source,
                               const RepairOptions&) {
  RepairFinding finding = find_group_order(repaired.state, source);
  for (const SwappedGroups& groups : find_swapped_groups(repaired.state)) {
    swap_back(groups, repaired.state);
  }
  return finding;
}

void refuse_swapped_groups(const FiledState& state) {
  const auto swapped = find_swapped_groups(state);
  if (swapped.empty()) return;
  throw Error(ErrorCode::Corrupt, place_of(swapped[0]), kSwappedGroups,
              "--repair group-order gives each group its own");
}

void report_swapped_groups(const FiledState& state, VerifyReport& report) {
  for (const SwappedGroups& groups : find_swapped_groups(state)) {
    report.find(place_of(groups), kSwappedGroups,
                "Megatron-Core up to 0.15 loads groups by their place, which is another one on "
                "pipeline stages above 0; ckpt-convert --repair group-order gives each its own");
  }
}

}  // namespace

const Issue kGroupOrder{.kind = RepairKind::GroupOrder,
                        .name = "group-order",
                        .find = find_group_order,
                        .mend = mend_group_order,
                        .refuse = refuse_swapped_groups,
                        .report_settings = report_swapped_groups};

}  // namespace optim
