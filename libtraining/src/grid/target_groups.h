#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/value.h>
#include <optim/param_group.h>
#include <training/training_state.h>

// The parameter groups of a target, and those that a checkpoint states, matched with those that its
// model's parameters make. Of a target, where are_experts_apart(), experts have groups of their
// own, so that a changed size splits groups or joins them.
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

// A number of a group's dict; nullopt where there is none.
std::optional<double> number_in(const ckpt::Value& group, std::string_view key);

// Those of one optimizer of a chain; `groups`: of all, in its order.
std::span<const ParamGroup> groups_of_optimizer(std::span<const ParamGroup> groups,
                                                uint32_t optimizer);

// Which of the groups that an optimizer states belongs to which group of the model's parameters:
// [group] a place in `stated`, dicts. By wd_mult, lr_mult, is_expert_parallel and is_decoupled_lr,
// as Megatron since 0.13 matches them: their order is not the same in all versions. Groups that
// these do not tell apart keep their order, and so do all where they do not fit. Both lists have
// one length.
std::vector<size_t> match_stated_groups(std::span<const ckpt::Value> stated,
                                        std::span<const ParamGroup> groups);

}  // namespace optim
