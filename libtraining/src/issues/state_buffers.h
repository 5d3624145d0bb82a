#pragma once

#include <vector>

#include <training/training_state.h>

#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "grid/placement.h"

namespace optim {

// The flat buffers of a state in its own grid, and what lays them out. Stays where it is made, as
// its parts point into each other; the state must outlive it. Throws as flat_arguments() and
// FlatBuffers do.
struct StateBuffers {
  explicit StateBuffers(const TrainingState& state)
      : placement(state, state.grid),
        params(state.params),
        groups(group_params(state.args(), state.grid.sizes, params)),
        arguments(flat_arguments(state.args(), "args")),
        flat(state, placement, groups, arguments) {}
  StateBuffers(const StateBuffers&) = delete;
  StateBuffers& operator=(const StateBuffers&) = delete;

  Placement placement;
  std::vector<TrainedParam> params;
  std::vector<ParamGroup> groups;
  FlatArguments arguments;
  FlatBuffers flat;
};

}  // namespace optim
