// The reference's deal, stage by stage. Source: LayerWiseDistributedOptimizer.shard_params of
// megatron/core/optimizer/layer_wise_optimizer.py: over the shapes on a rank, experts apart.
#include "grid/rank_deals.h"

namespace optim {
namespace {

constexpr uint32_t kNoGroup = ~uint32_t{0};

}  // namespace

RankDeals::RankDeals(const TrainingState& state, const Placement& placement,
                     const std::vector<ParamGroup>& groups, Policy policy)
    : state_(state), placement_(placement), groups_(groups), policy_(policy) {
  group_of_.assign(state.params.size(), kNoGroup);
  for (uint32_t group = 0; group < groups.size(); ++group) {
    for (const GroupedParam& param : groups[group].params) group_of_[param.index] = group;
  }
  const ParallelSizes& sizes = placement.grid().sizes;
  for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
    for (uint32_t expert = 0; expert < sizes.expert_parallel; ++expert) {
      stages_.emplace(std::pair(stage, expert), deal_stage(stage, expert));
    }
  }
}

RankDeals::Stage RankDeals::deal_stage(uint32_t stage, uint32_t expert_rank) const {
  Stage dealt;
  std::vector<std::vector<uint32_t>> held_of_group(groups_.size());
  for (const HeldEntry& held : placement_.held(stage, expert_rank)) {
    const ModelEntry& entry = state_.model[held.entry];
    if (entry.what != ModelEntry::What::Param || group_of_[entry.param] == kNoGroup) continue;
    held_of_group[group_of_[entry.param]].push_back(static_cast<uint32_t>(dealt.held.size()));
    dealt.held.push_back(held);
  }
  std::vector<ParamGroup> local;
  for (size_t group = 0; group < groups_.size(); ++group) {
    ParamGroup here{.is_expert_parallel = groups_[group].is_expert_parallel};
    here.updated_by = groups_[group].updated_by;
    here.optimizer_index = groups_[group].optimizer_index;
    here.params.reserve(held_of_group[group].size());
    for (const uint32_t index : held_of_group[group]) {
      const uint32_t param = state_.model[dealt.held[index].entry].param;
      here.params.push_back({index, {}});
      if (is_dealt()) {
        const ckpt::Extents shape = placement_.shape_on_rank(param);
        here.params.back().info.shape.assign(shape.begin(), shape.end());
      }
      dealt.held_of_id.push_back(index);
    }
    local.push_back(std::move(here));
  }
  // The reference deals nothing where dense parameters have one rank.
  const ParallelSizes& sizes = placement_.grid().sizes;
  const SharingSizes sharing =
      is_dealt() ? SharingSizes{sizes.dp_cp(), sizes.expt_dp()} : SharingSizes{1, 1};
  dealt.ownership = shard_params_over(local, sharing, policy_.ownership);
  return dealt;
}

bool RankDeals::is_dealt() const {
  return policy_.is_sharded && placement_.grid().sizes.dp_cp() > 1;
}

OwnedGroups RankDeals::owned(const RankCoordinates& rank) const {
  const Stage& stage = stages_.at({rank.pp, rank.ep});
  const RankInGroups place = is_dealt() ? RankInGroups{rank.dp_cp, rank.edp} : RankInGroups{};
  OwnedGroups owned;
  for (const auto& ids : stage.ownership.groups_on(place)) {
    owned.emplace_back();
    for (const uint32_t id : ids) owned.back().push_back(stage.held[stage.held_of_id[id]]);
  }
  return owned;
}

}  // namespace optim
