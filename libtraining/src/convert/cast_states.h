#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ckpt/cast.h>
#include <training/filed_state.h>

// A training state's tensors in other types than the source has them in: states and weights as
// options ask, and remainders of masters as the target's form keeps them. Elements change where
// they are read (ckpt/cast.h).
namespace optim {

struct CastStates {
  std::shared_ptr<const FiledState> state;    // null: all types stay
  std::vector<std::string> rounded, widened;  // "exp_avg: float32 to bfloat16"
};

// Which states get which type. Throws InvalidArgument for a state that no parameter has, masters,
// and types that are not exchanged for each other. Pure.
std::vector<StateType> types_of_target(const FiledState& state, const FiledAs& target,
                                       const std::vector<StateType>& asked);

// Who reads the result throws Unsupported, by value, where one does not fit the type. Pure.
CastStates cast_states(const FiledState& state, const std::vector<StateType>& types);

// Weights as rules want them, by name of the parameter. Throws Unsupported beside an optimizer,
// whose masters the weights are. Pure.
void cast_weights(ckpt::TypeChange& types, FiledState& state);

// Puts the type of all weights into args.
void state_type(ckpt::DType type, TrainingState& state);

}  // namespace optim
