#pragma once

#include <optional>
#include <string>

#include <optim/training_state.h>
#include <optim/verify.h>

namespace optim {

// An argument of the run that the tensors of its model contradict.
struct ContradictedArg {
  std::string name;     // num_layers
  std::string problem;  // "is 4, but the model has 3 decoder layers"
};

// Whether args describe each layer by itself, so that layers need not be alike.
bool layers_are_described(const TrainingState& state);

// hidden_size and padded_vocab_size against the word embeddings, hidden_size against the matrices
// of layers, swiglu against those of the MLP, and contradicted_count(). nullopt: they agree, or the
// model has nothing to compare with.
std::optional<ContradictedArg> contradicted_arg(const TrainingState& state);

// num_layers and num_experts against the names of parameters, of which the ranks' own get their
// numbers by these arguments.
std::optional<ContradictedArg> contradicted_count(const TrainingState& state);

// The same as a finding.
void check_args(const TrainingState& state, VerifyReport& report);

}  // namespace optim
