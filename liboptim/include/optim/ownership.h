#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <optim/layout_export.h>
#include <optim/param_group.h>

namespace optim {

// Sizes of the process grid, in ranks; all at least 1.
struct OPTIM_LAYOUT_EXPORT ParallelSizes {
  uint32_t data_parallel = 1;
  uint32_t context_parallel = 1;
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  uint32_t virtual_pipeline_parallel = 1;  // model chunks per pipeline rank
  uint32_t expert_parallel = 1;
  uint32_t expert_tensor_parallel = 1;

  uint64_t world() const;  // tensor * context * data * pipeline
  uint32_t dp_cp() const;  // ranks over which whole parameters are dealt
  // Ranks over which experts are dealt: world / (expert_tensor * expert * pipeline). Throws
  // Error(InvalidArgument) when that is not a whole number. All three throw it for a size of 0.
  uint32_t expt_dp() const;
  bool operator==(const ParallelSizes&) const = default;
};

enum class OwnershipPolicy : uint8_t {
  PingPong,  // the reference (core 0.18-dev): by element count, dealt 0..N-1, N-1..0, ...
  Balanced,  // ours: by Newton-Schulz cost, longest first to the least loaded rank
  Lpt,       // the reference of core 0.20-dev: the same with a cap on elements, see lpt_layout.h
};

// One rank's place in the two groups that share parameters.
struct RankInGroups {
  uint32_t dp_cp = 0;
  uint32_t expt_dp = 0;
};

// A parameter that a rank keeps. `group` counts within the optimizer, `index` over all groups of
// that optimizer on that rank: how the state of a LayerWise checkpoint is numbered.
struct LocalParam {
  uint32_t id = 0;
  uint32_t optimizer = 0;
  uint32_t group = 0;
  uint32_t index = 0;
  bool operator==(const LocalParam&) const = default;
};

// Who updates what. A parameter is its id: its place in the concatenation of all groups.
struct OPTIM_LAYOUT_EXPORT Ownership {
  // The reference's lists: [rank] -> ids in the order dealt. Empty where the reference has None:
  // both with dp_cp = 1, expt_dp_params_list also without experts or with expt_dp = 1.
  std::vector<std::vector<uint32_t>> dp_cp_params_list;
  std::vector<std::vector<uint32_t>> expt_dp_params_list;

  std::vector<uint32_t> owner;     // [id] -> rank in the sharing group of that parameter
  std::vector<uint32_t> dealt;     // ids in the order in which they were dealt
  std::vector<uint32_t> group_of;  // [id] -> group, counted over all optimizers
  std::vector<bool> is_expert;     // [id]
  uint32_t group_count = 0;

  // The ids of each group that a rank keeps, in the order of its optimizer.
  std::vector<std::vector<uint32_t>> groups_on(RankInGroups rank) const;
};

// Pure: the same answer on every rank. With one rank in both groups nothing is
// sharded, groups keep model order.
// Throws Error(InvalidArgument) for a size of 0 and for more than 2^32 - 1 parameters.
OPTIM_LAYOUT_EXPORT Ownership shard_params(std::span<const ParamGroup> groups,
                                           const ParallelSizes& sizes, OwnershipPolicy policy);

// The same for groups of ranks that are no grid: the ranks that share dense parameters and those
// that share experts.
struct SharingSizes {
  uint32_t dp_cp = 1, expt_dp = 1;
};
OPTIM_LAYOUT_EXPORT Ownership shard_params_over(std::span<const ParamGroup> groups,
                                                const SharingSizes& sizes, OwnershipPolicy policy);

// What a rank keeps, by optimizer and index. `groups` are those that were sharded.
OPTIM_LAYOUT_EXPORT std::vector<LocalParam> local_params(std::span<const ParamGroup> groups,
                                                         const Ownership& ownership,
                                                         RankInGroups rank);

// The rank that gets the `turn`-th parameter of a ping-pong deal over rank_count >= 1 ranks.
uint32_t ping_pong_rank(uint64_t turn, uint32_t rank_count);

// Cost that Balanced evens out, proportional to time, without a unit: max * min^2 of the sizes of a
// matrix in a group that Muon, SOAP or adaptive Muon updates, else the element count.
double update_cost(const ParamInfo& param, const ParamGroup& group);

}  // namespace optim
