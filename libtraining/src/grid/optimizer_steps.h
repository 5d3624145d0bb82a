#pragma once

#include <optional>
#include <string>

#include <ckpt/dtype.h>
#include <ckpt/value.h>
#include <training/training_state.h>

namespace optim {

// Moves the step that all parameters of an optimizer share into its groups, as a
// DistributedOptimizer files it. `tree`: of the groups. Throws Unsupported for a tensor of
// another type than float32, float64, int32 and int64.
void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer);

// One element of a tensor of the types in which optimizers count steps; nullopt for other types and
// for bytes that are not one element.
std::optional<double> step_number(ckpt::DType dtype, const std::string& bytes);

}  // namespace optim
