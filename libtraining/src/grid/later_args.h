#pragma once

#include <training/training_state.h>

namespace optim {

bool has_later_args(const TrainingState& state);
// Takes out of args what Megatron of April 2026 has no class for, so that it could not load them,
// and lists it.
void drop_later_args(TrainingState& state);

}  // namespace optim
