#pragma once

#include <string_view>
#include <vector>

#include <ckpt/archive_builder.h>
#include <optim/param_group.h>
#include <training/training_state.h>

// The parameter groups of a target: where are_experts_apart(), experts have groups of their own, so
// that a changed size splits groups or joins them.
namespace optim {

inline constexpr std::string_view kDenseAmongExperts =
    "its parameter group says is_expert_parallel, but it is not an expert";

struct TargetGroups {
  std::vector<ParamGroup> groups;    // counted over all optimizers, with their parameters
  std::vector<ckpt::NodeId> stated;  // [group] the source's group whose settings it takes
  std::vector<uint32_t> optimizer;   // [group] place in the chain

  // Of the optimizer, their places in `groups`.
  std::vector<uint32_t> of_optimizer(uint32_t index) const;
};

// A parameter that is not an expert, and whose group says is_expert_parallel; null where there is
// none.
const TrainedParam* dense_among_experts(const TrainingState& source);

// Pure. Throws Unsupported, by the setting, where groups that become one differ in it; Corrupt
// where dense_among_experts().
TargetGroups target_groups(const TrainingState& source, const ParallelSizes& sizes);

// The settings of a group, as a dict of the archive's.
ckpt::NodeId carry_group(const TrainingState& source, const TargetGroups& groups, uint32_t group,
                         ckpt::ArchiveBuilder& archive);

}  // namespace optim
