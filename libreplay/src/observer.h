#pragma once

#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <replay/replay.h>

namespace optim {

// Who looks on while steps are replayed, on the CPU. The optimizer's state is that of the moment.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  virtual void begin(LayerWiseDistributedOptimizer& optimizer, int64_t steps) = 0;
  // Gradients are clipped, groups have the rates of the step, nothing has moved.
  virtual void before_update(LayerWiseDistributedOptimizer& optimizer, int64_t step) = 0;
  virtual void after_update(LayerWiseDistributedOptimizer& optimizer, int64_t step) = 0;
  virtual void end() = 0;  // the last call; the optimizer is still there
};

// replay() with an observer.
ReplayReport replay_observed(const ReplayOptions& options, ReplayObserver* observer);

}  // namespace optim
