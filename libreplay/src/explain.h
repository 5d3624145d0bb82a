#pragma once

#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <replay/comparison.h>

#include "outcome.h"
#include "restored_optimizer.h"
#include "step/communication/collectives.h"

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

// --- step_parts.cc: which part of a step a recorded state differs in. Each part is computed again
// from what was recorded before it, so that a difference shows in the part that made it. ---

// What goes into the step of one parameter. Tensors are fp32, on the CPU.
struct StepInputs {
  const ParamInfo& info;
  const OptimizerGroup& group;  // its rule
  double lr = 0, weight_decay = 0;
  at::Tensor param, grad;  // the master before the step; the gradient before clipping
  ParamState state = {};
  int64_t step = 0;       // updates before
  double grad_scale = 1;  // the factor of clipping
};

// What was recorded behind it.
struct StepRecord {
  at::Tensor param, weight;  // the master; the model's, undefined where that is the same
  ParamState state;
};

// The first part in which a parameter differs.
struct PartFinding {
  struct Numbers {
    double ours = 0, recorded = 0;  // as PartOfStep has them; Norm has none
  };
  std::optional<StepPart> part = {};  // none: the recorded bits are what the inputs give
  bool is_rounding = true;            // the difference is not beyond rounding
  std::array<std::optional<Numbers>, kStepParts> numbers = {};
};
PartFinding find_part(const StepInputs& inputs, const StepRecord& record);

// Whether gradients were clipped, and by what.
struct Clipping {
  double max_norm = 0, norm = 0;  // ours
  bool is_norm_recorded = false;
};
// Of the parameters of the names, in model order. A factor that differs for all is the norm's or
// the clipping's; one that differs for some is of their gradients.
std::vector<PartOfStep> summarize(std::span<const std::pair<std::string, PartFinding>> findings,
                                  const Clipping& clipping);

}  // namespace optim
