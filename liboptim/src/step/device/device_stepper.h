#pragma once

#include <ATen/core/Tensor.h>

#include <kernels/device_step.h>
#include <optim/optimizer.h>
#include <functional>
#include <memory>

#include "step/device/device_plan.h"

namespace optim {

// The steps of one optimizer on the device that holds its parameters. Everything is queued on the
// caller's current stream: nothing waits for the device, and tables are built only when a tensor
// was replaced. With optimizer_cuda_graph the work is recorded once and replayed.
class DeviceStepper {
 public:
  // All parameters lie on `device`. The configuration and the api stay the caller's.
  DeviceStepper(const OptimizerConfig& config, const at::Device& device,
                const kernels::DeviceApi& api);

  struct Scaling {
    float inverse_loss_scale = 1;
    bool check_finite = false;  // a step with an infinite or NaN gradient changes nothing
  };
  // Statistics of the gradients that are bound now; there may be none. `stats_count`: parameters of
  // all ranks.
  void queue_stats(const std::vector<OptimizerGroup*>& groups, uint32_t stats_count,
                   const Scaling& scaling);

  // By parameter id: sum of squares and number of zeros, fp64, stats_count x 2, on the device. What
  // several processes add up before the update.
  at::Tensor stats() const;

  void queue_update();

  // Of the last step, when the device has done it. Waits.
  kernels::StepControl read_control() const;
  // The same, of the step whose results this is called for now, whatever is queued later.
  std::function<kernels::StepControl()> deferred_control() const;

  void count_step();  // of each parameter that was updated

 private:
  void check_types(const std::vector<OptimizerGroup*>& groups) const;
  void rebuild(DevicePlan plan);

  const OptimizerConfig& config_;
  at::Device device_;
  const kernels::DeviceApi& api_;
  DevicePlan plan_;
  std::unique_ptr<kernels::DeviceStep> step_;
  at::Tensor memory_;
};

}  // namespace optim
