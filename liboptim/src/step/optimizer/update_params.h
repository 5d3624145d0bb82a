#pragma once

#include <span>

#include <optim/optimizer.h>

namespace optim {

// A parameter that has a gradient, and the group whose rule updates it.
struct PendingUpdate {
  OptimizerGroup* group = nullptr;
  OptimizedParam* param = nullptr;
};

// Counts a step for each, updates masters and states, rounds masters to the model's tensors.
// Parameters of one group that follow each other go to its rule together.
void update_params(std::span<const PendingUpdate> updates, const StatePrecision& precision,
                   double grad_scale);

}  // namespace optim
