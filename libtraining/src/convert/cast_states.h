#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include <ckpt/payload_source.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

// Optimizer states in other types than the source has them in: as options ask, and remainders of
// masters as the target's form keeps them.
namespace optim {

struct CastStates {
  std::shared_ptr<const FiledState> state;              // null: all types stay
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // of it; reads those that were given
  std::vector<std::string> rounded, widened;            // "exp_avg: float32 to bfloat16"
};

// Which states get which type. Throws InvalidArgument for a state that no parameter has, masters,
// and types that are not exchanged for each other. Pure.
std::vector<StateType> types_of_target(const FiledState& state, const FiledAs& target,
                                       const std::vector<StateType>& asked);

bool changes_any(const FiledState& state, const std::vector<StateType>& types);

struct CastSource {
  const OpenedTraining& checkpoint;
  const ckpt::PayloadSource& payloads;  // where the bytes of the state come from
  const std::stop_token& stop;
};
// What is given must outlive the result, whose payloads throw Unsupported, by value, where one that
// is read does not fit the type. Checks the checksums of what is cast, which nothing else does;
// throws Corrupt where one is wrong, Error(IoFailure, "cancelled") when asked to stop.
CastStates cast_states(const FiledState& state, const CastSource& source,
                       const std::vector<StateType>& types);

}  // namespace optim
