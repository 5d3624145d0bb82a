#pragma once

#include <memory>
#include <span>

#include <optim/optimizer.h>

#include "step/communication/gather_params.h"

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

// Updates this process's parameters in the order in which they travel, and sends them: a round
// leaves as soon as its own are done, and the gathers come one after the other. Parameters that
// have no gradient stay as they are and travel, too. Collective.
void update_and_gather(Optimizer& optimizer, std::span<const std::unique_ptr<ParamGather>> gathers,
                       double grad_scale);

}  // namespace optim
