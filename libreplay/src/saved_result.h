#pragma once

#include <optim/layer_wise_optimizer.h>
#include <optim/optimizer_param_scheduler.h>
#include <replay/replay.h>

#include "restored_optimizer.h"
#include "step/communication/collectives.h"

namespace optim {

struct ReplayResult {
  LayerWiseDistributedOptimizer& optimizer;
  const OptimizerParamScheduler& scheduler;
  int64_t iteration = 0;
};

// Writes options.output: the checkpoint that was read, with the state after the steps. Process 0
// writes, the others send it what they own. Collective; where process 0 fails, all fail. What was
// not carried is known to process 0.
std::vector<ckpt::NotCarried> save_result(const ReplaySource& source, const ReplayResult& result,
                                          const ReplayOptions& options, Collectives& collectives);

}  // namespace optim
