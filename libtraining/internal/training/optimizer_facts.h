#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <training/groups.h>
#include <training/run_facts.h>

// What stored parameter groups tell of the optimizers that step them.
namespace optim {

// Parameter groups that one update rule steps.
struct OptimizerFacts {
  std::string rule;  // "AdamW", "Muon", ...; "optimizer" where it cannot be told
  std::optional<uint64_t> parameter_count;            // tensors
  std::vector<double> learning_rates, weight_decays;  // each once, in the order of the groups
};

// What a group says under a name; as a number. nullopt where it does not have it, or as something
// else.
std::optional<ckpt::Value> setting_of(const StoredGroup& group, std::string_view name);
std::optional<double> number_of(const StoredGroup& group, std::string_view name);

// The update rule that steps a group: "AdamW", "Muon", ...; "optimizer" where its settings do not
// tell.
std::string rule_of(const StoredGroup& group, const RunFacts& run);

// In the order of the groups. Groups that several rank files repeat count once; how many parameters
// they have is then not known.
std::vector<OptimizerFacts> describe_optimizers(std::span<const StoredGroup> groups,
                                                const RunFacts& run);

// "step" of the groups, the largest; nullopt where none says.
std::optional<int64_t> step_of_groups(std::span<const StoredGroup> groups);

// What each rank has to compute, in the order of `ranks`: 1 is the mean. Empty for less than two
// ranks, and where no rank has a cost.
std::vector<double> balance_of(std::span<const RankLoad> ranks);

}  // namespace optim
