#pragma once

#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <replay/divergence.h>

#include "outcome.h"
#include "restored_optimizer.h"
#include "step/communication/collectives.h"
#include "step_parts.h"

namespace optim {

// The last step of a replay, as far as it is computed again.
struct LastStep {
  LayerWiseDistributedOptimizer& optimizer;
  const ReplaySource& source;
  const Gradients& gradients;
  struct Rates {
    double lr = 0, weight_decay = 0;
  };
  std::vector<Rates> rates;     // [group], when it was taken
  double norm = 0, factor = 1;  // of clipping
  float inverse_scale = 1;      // of the loss
  bool was_skipped = false;
};

// What a comparison found first, and the part of the step that made it: known where one step was
// taken. Reads what the step started from once more, tensor by tensor. The result is the same on
// every process. Collective.
Divergence explain(const Comparison& comparison, const Expected& expected, const LastStep& last,
                   Collectives& collectives);

}  // namespace optim
