#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <training/conversion_facts.h>
#include <training/training_state.h>

namespace optim {

// Pure. In the order in which the states come, weights first; those of experts behind the others.
std::vector<StateCount> count_states(const TrainingState& state);

// The same with the rows that embeddings and output layer get in a target: target_vocabulary(); 0:
// those that they have.
std::vector<StateCount> count_states(const TrainingState& state, uint64_t vocabulary_rows);

// "of optimizer 1 weight 96, fp32_param 96, exp_avg 96, exp_avg_sq 64": an optimizer of which
// masters and states do not have the elements of the weights that it trains. Pure.
std::vector<std::string> uneven_counts(const TrainingState& state);

}  // namespace optim
