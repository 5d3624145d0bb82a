#pragma once

#include <ATen/core/Tensor.h>

#include <kernels/device_step.h>
#include <optim/optimizer.h>
#include <optim/step_result.h>
#include <functional>
#include <memory>

#include "step/device/device_plan.h"
#include "step/device/offload_stepper.h"

namespace optim {

// The steps of one optimizer on the device that holds its parameters. Everything is queued on the
// caller's current stream: nothing waits for the device, and tables are built only when a tensor
// other than a gradient was replaced. With optimizer_cuda_graph the work is recorded once and
// replayed. Parameters that are offloaded the CPU updates, and for those the host waits: for their
// gradients, not for the device's own updates. Gradients are not kept: like every tensor that is
// used on a stream, one that was allocated on another stream is told so by its owner
// (record_stream).
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
  // all ranks. `parts`: ids that each queue_update() updates; none: all at once.
  void queue_stats(const std::vector<OptimizerGroup*>& groups, uint32_t stats_count,
                   const Scaling& scaling, const UpdateParts& parts = {});

  // By parameter id: sum of squares and number of zeros, fp64, stats_count x 2, on the device. What
  // several processes add up before the update.
  at::Tensor stats() const;
  // What takes their place where queue_stats() threw: the sum with it makes the step one that
  // changes nothing, on all ranks (StepControl::failed). Throws where the device is beyond that.
  at::Tensor stats_of_failure();

  void queue_update(uint32_t part = 0);

  // Steps as work alone (optim/queued_step.h): plans and loads all that queue_prepared() queues in
  // the place of queue_stats(), then waits. `sources` fit; `scaling` is for what they do not have.
  // Throws Error(Unsupported) where parameters are offloaded.
  struct Preparation {
    uint32_t stats_count = 0;
    UpdateParts parts = {};
    Scaling scaling = {};
    QueuedStepSources sources = {};
  };
  void prepare(const std::vector<OptimizerGroup*>& groups, const Preparation& preparation);
  bool is_prepared() const { return sources_.rates.defined(); }
  // Throws Error(InvalidArgument), with the parameter's name where it is one's, before anything is
  // queued, where something is not as it was prepared.
  void queue_prepared(const std::vector<OptimizerGroup*>& groups);
  QueuedStep queued_results() const;
  void end_prepared();  // the device's counts are the parameters' then. Waits.

  // Of the last step, when the device has done it. Waits.
  kernels::StepControl read_control() const;
  // The same, of the step whose results this is called for now, whatever is queued later.
  std::function<kernels::StepControl()> deferred_control() const;

  void count_step();  // of each parameter that was updated
  // Takes back what count_step() counted where the device then changed nothing: how many steps, at
  // most, a parameter was counted too far. Waits.
  int64_t settle_counts();

 private:
  void check_types(const std::vector<OptimizerGroup*>& groups) const;
  DevicePlan make_plan(const std::vector<OptimizerGroup*>& groups, uint32_t stats_count) const;
  void make_failure_stats(uint32_t stats_count);
  void set_host_values(const Scaling& scaling);
  void rebuild(DevicePlan plan);
  void queue_part(uint32_t part);

  const OptimizerConfig& config_;
  at::Device device_;
  const kernels::DeviceApi& api_;
  DevicePlan plan_;
  OffloadStepper offload_;
  UpdateParts parts_;  // of the step, as queue_stats() was given them
  std::unique_ptr<kernels::DeviceStep> step_;
  at::Tensor memory_;
  QueuedStepSources sources_;  // while steps are prepared
  bool must_prepare_again_ = false;
  at::Tensor failure_stats_;  // made before anything can fail
};

}  // namespace optim
