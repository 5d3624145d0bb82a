#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ckpt/value.h>
#include <optim/lpt_layout.h>
#include <optim/param_group.h>
#include <training/training_state.h>

#include "grid/placement.h"
#include "sharding/flat_layout.h"

// Which parameters lie where in the flat buffers of DistributedOptimizers (ZeRO-1), whose state is
// cut by elements, and who owns which of these: every rank that shares a buffer owns an equal part
// of each bucket. Pure: from names, shapes and splits of a training state, and the grid.
namespace optim {

// Megatron's arguments that decide how buffers are cut into buckets.
struct FlatArguments {
  BucketArguments buckets;
  std::optional<uint64_t> bucket_count;  // --ddp-num-buckets
  bool pad_for_high_nccl_busbw = false;  // --ddp-pad-buckets-for-high-nccl-busbw
};
// `args`: the attributes of the Namespace in `file`. Throws Corrupt for sizes that are none,
// Unsupported, by the name of the argument, for what is not known.
FlatArguments flat_arguments(const ckpt::Value& args, const std::string& file);

// Of one optimizer, model chunk and type of weights of a rank.
struct FlatBuffer {
  std::vector<HeldEntry> held;  // its parameters, in the order in which the model registers them
  FlatLayout layout;            // places: of `held`
};

class FlatBuffers {
 public:
  // `groups`: of all parameters of `state`, as group_params() makes them; the splits of parameters
  // are known. What is given must outlive it.
  FlatBuffers(const TrainingState& state, const Placement& placement,
              const std::vector<ParamGroup>& groups, const FlatArguments& arguments);

  const Placement& placement() const { return placement_; }
  // Whether an optimizer of the chain has the parameters of expert parallel ranks.
  bool has_experts(uint32_t optimizer) const;
  // How many ranks share its buffers: those of one optimizer instance.
  uint32_t sharing_ranks(uint32_t optimizer) const;
  // Of the ranks that share its buffers with this one: which it is.
  uint32_t number_among_sharing(uint32_t optimizer, const RankCoordinates& rank) const {
    return data_parallel_rank(optimizer, rank) % sharing_ranks(optimizer);
  }
  // Whether it is the rank that writes them where one does: the first of the first instance.
  bool writes(uint32_t optimizer, const RankCoordinates& rank) const {
    return data_parallel_rank(optimizer, rank) == 0;
  }
  // dp_group_idx: the number of the model's copy that these ranks share.
  uint32_t copy_number(uint32_t optimizer, const RankCoordinates& rank) const {
    return has_experts(optimizer) ? rank.expert_copy : rank.model_copy;
  }
  std::string_view rule_of(uint32_t optimizer) const;  // "adam": what updates its parameters
  // In the order of Megatron's gbuf_idx: of each model chunk that has parameters of the optimizer,
  // one for each type of weights. Throws Unsupported where Megatron mistakes those of several
  // types. `left_out`: parameters that take no place, besides those that are frozen.
  std::vector<FlatBuffer> of(uint32_t optimizer, const RankCoordinates& rank,
                             const std::set<uint32_t>& left_out = {}) const;
  // Throws as of() would for any rank, Unsupported where the model's order is not known.
  void require_laid_out(uint32_t optimizer) const;

 private:
  uint32_t data_parallel_rank(uint32_t optimizer, const RankCoordinates& rank) const {
    return has_experts(optimizer) ? rank.edp : rank.dp_cp;
  }
  uint64_t elements_on_rank(uint32_t param) const;
  void require_own_masters_first(const std::vector<FlatBuffer>& buffers) const;
  std::optional<uint64_t> bucket_size(const RankCoordinates& rank) const;

  const TrainingState& state_;
  const Placement& placement_;
  const std::vector<ParamGroup>& groups_;
  const FlatArguments& arguments_;
  std::vector<const ParamGroup*> groups_of_;  // [param] frozen ones have none
};

// What a rank owns of its own tensor of a parameter, flattened.
struct FlatShare {
  uint32_t param = 0;
  ElementRange range;
};

// Of a bucket's elements, in the buffer, those of one of the ranks that share it.
ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count);

// Lays each buffer out once, whatever the number of ranks that share it.
class FlatShares {
 public:
  // `state`: that of `buffers`. Both must outlive it.
  FlatShares(const TrainingState& state, const FlatBuffers& buffers)
      : state_(state), buffers_(buffers) {}

  // Of one optimizer of the chain on one rank, in the model's order.
  std::vector<FlatShare> of(uint32_t optimizer, const RankCoordinates& rank);

 private:
  struct Buffer {
    FlatBuffer laid_out;
    std::vector<uint32_t> order;  // places by where they begin
  };
  // Of the ranks of a stage that hold the same experts, which all hold as much.
  using Holders = std::tuple<uint32_t, uint32_t, uint32_t>;  // optimizer, stage, expert rank
  const std::vector<Buffer>& held_by(const Holders& holders, const RankCoordinates& rank);
  void add(const Buffer& buffer, ElementRange own, std::vector<FlatShare>& shares) const;

  const TrainingState& state_;
  const FlatBuffers& buffers_;
  std::map<Holders, std::vector<Buffer>> known_;
};

}  // namespace optim
