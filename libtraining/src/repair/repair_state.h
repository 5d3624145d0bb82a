#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ckpt/value_tree.h>
#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/repair.h>
#include <training/training_state.h>

namespace optim {

// A training state as it is carried, and where its bytes come from.
struct RepairedState {
  FiledState state;
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // null: the checkpoint's own
  std::vector<RepairFinding> repairs;                   // that were asked for, in their order
};

// What is wrong with a state that was read, of kinds that are not of the common state. Reads
// masters and weights of parameters that may be displaced, and changes nothing.
RepairFinding find_shift(const FiledState& state, const OpenedTraining& source);
RepairFinding find_group_order(const FiledState& state);

// Mends what options ask for. Throws Corrupt where that cannot be mended; for elements that are in
// no file unless options accept it, and for groups of another order unless options ask for them.
RepairedState repair_state(FiledState state, const OpenedTraining& source,
                           const RepairOptions& options);

inline constexpr const char* kSwappedGroups =
    "its group and another one have each other's weight_decay, by their wd_mult";

// Two groups of an optimizer, of which the one that must not decay weights (wd_mult 0) does, and
// the one that must does not: what is left where groups were taken by their place in a list, as
// Megatron-Core up to 0.12 does when it loads (DistributedOptimizer.load_state_dict).
struct SwappedGroups {
  uint32_t optimizer = 0;
  size_t without_decay = 0, with_decay = 0;  // groups, by what wd_mult says
};

std::vector<SwappedGroups> find_swapped_groups(const TrainingState& state);
// Gives each its own weight_decay.
void swap_back(const SwappedGroups& groups, TrainingState& state);

}  // namespace optim
