#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <optim/groups.h>
#include <optim/run_facts.h>

namespace tools::inspect {

// Parameter groups that one update rule steps.
struct OptimizerFacts {
  std::string rule;  // "AdamW", "Muon", ...; "optimizer" where it cannot be told
  std::optional<uint64_t> parameter_count;            // tensors
  std::vector<double> learning_rates, weight_decays;  // each once, in the order of the groups
};

// The update rule that steps a group: "AdamW", "Muon", ...; "optimizer" where its settings do not
// tell.
std::string rule_of(const optim::StoredGroup& group, const optim::RunFacts& run);

// In the order of the groups. Groups that several rank files repeat count once; how many parameters
// they have is then not known.
std::vector<OptimizerFacts> describe_optimizers(const std::vector<optim::StoredGroup>& groups,
                                                const optim::RunFacts& run);

// "step" of the groups, the largest; nullopt where none says.
std::optional<int64_t> step_of_groups(const std::vector<optim::StoredGroup>& groups);

// "Muon 9 parameters, lr 0.00815, wd 0.1"; of all but the first without the word.
std::string optimizer_text(const OptimizerFacts& facts, bool is_first);

// "balance 1.20 / 0.80 of the mean work"; empty for less than two ranks, and where no rank has a
// cost.
std::string balance_text(const std::vector<optim::RankLoad>& ranks);

}  // namespace tools::inspect
