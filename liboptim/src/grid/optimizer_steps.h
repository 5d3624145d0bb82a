#pragma once

#include <ckpt/value.h>
#include <optim/training_state.h>

namespace optim {

// Moves the step that all parameters of an optimizer share into its groups, as a
// DistributedOptimizer files it. `tree`: of the groups. Throws Unsupported for one that is neither
// a float32 tensor nor in the groups.
void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer);

}  // namespace optim
