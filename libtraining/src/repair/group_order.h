#pragma once

#include <optional>
#include <utility>

#include <ckpt/value_tree.h>
#include <training/training_state.h>

namespace optim {

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
