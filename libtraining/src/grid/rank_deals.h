#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <optim/ownership.h>
#include <training/training_state.h>

#include "grid/placement.h"

// Who owns which optimizer state in a grid of ranks: Megatron deals the parameters of each
// pipeline stage and expert parallel rank over the ranks that share them. Pure.
namespace optim {

// Of a rank: parameters, as HeldEntry, of each group, counted over all optimizers, in local order.
using OwnedGroups = std::vector<std::vector<HeldEntry>>;

class RankDeals {
 public:
  struct Policy {
    bool is_sharded = true;  // parameters are dealt; else each rank owns all that it holds
    OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  };
  // `groups`: of all parameters of `state`, as group_params() makes them. Where the state was
  // joined of ranks already (its splits are known), shapes on a rank follow from the placement;
  // before, they are what the weights in `state` have. What is given must outlive it.
  RankDeals(const TrainingState& state, const Placement& placement,
            const std::vector<ParamGroup>& groups, Policy policy);

  const Placement& placement() const { return placement_; }
  const std::vector<ParamGroup>& groups() const { return groups_; }
  OwnedGroups owned(const RankCoordinates& rank) const;
  // Whether each rank owns a share; else all that share state own all of it.
  bool is_dealt() const;

 private:
  // Of one pipeline stage and expert parallel rank.
  struct Stage {
    std::vector<HeldEntry> held;       // parameters alone
    std::vector<uint32_t> held_of_id;  // ids are places in the concatenation of all groups
    Ownership ownership;
  };
  Stage deal_stage(uint32_t stage, uint32_t expert_rank) const;

  const TrainingState& state_;
  const Placement& placement_;
  const std::vector<ParamGroup>& groups_;
  Policy policy_;
  std::vector<uint32_t> group_of_;  // [param] counted over all optimizers; frozen: none, ~0
  std::map<std::pair<uint32_t, uint32_t>, Stage> stages_;
};

}  // namespace optim
