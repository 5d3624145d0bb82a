#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <training/export.h>
#include <training/training_state.h>

namespace optim {

// The elements of one state of all parameters. Experts are counted apart: they are what a change of
// layout loses first.
struct StateCount {
  std::string state;  // "weight", "fp32_param", "exp_avg", ...
  bool is_of_experts = false;
  uint64_t tensor_count = 0, element_count = 0;
  bool operator==(const StateCount&) const = default;
};

// Pure. In the order in which the states come, weights first; those of experts behind the others.
TRAINING_EXPORT std::vector<StateCount> count_states(const TrainingState& state);

// The same with the rows that embeddings and output layer get in a target: target_vocabulary(); 0:
// those that they have.
TRAINING_EXPORT std::vector<StateCount> count_states(const TrainingState& state,
                                                     uint64_t vocabulary_rows);

// "of optimizer 1 weight 96, fp32_param 96, exp_avg 96, exp_avg_sq 64": an optimizer of which
// masters and states do not have the elements of the weights that it trains. Pure.
TRAINING_EXPORT std::vector<std::string> uneven_counts(const TrainingState& state);

}  // namespace optim
