#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <optim/optimizer.h>

#include "step/communication/gather_params.h"

namespace kernels {
struct DeviceApi;
}

namespace optim {

class DeviceStepper;

// Whether losses are scaled, so that a step looks for infinities and may be skipped.
inline bool scales_loss(const OptimizerConfig& config) {
  return config.fp16 || config.loss_scale.has_value();
}

// The other processes that step the same model. As it is here there are none.
class Peers {
 public:
  explicit Peers(Optimizer& optimizer) : optimizer_(optimizer) {}
  virtual ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  virtual bool are_there() const { return false; }
  virtual bool any(bool mine) { return mine; }  // of all ranks
  virtual bool agree_on_overflow(bool found_inf) { return found_inf; }
  virtual void barrier() {}
  // Parameters with a gradient, of all ranks; known once get_grad_norm() was called.
  virtual int64_t grad_count();
  // Of a step on a GPU: where the parameters of all ranks lie, those of others included; how many
  // parameter ids there are; adds up all ranks' statistics by parameter id.
  virtual at::Device device();
  virtual uint32_t stats_count();
  virtual void sum_stats(at::Tensor& /*stats*/) {}
  // Parameters travel while others are updated: ids of each part of the update, and what is called
  // when a part is queued, and after the last one. No parts: they travel when all is queued, by
  // gather_params().
  virtual std::vector<std::vector<uint32_t>> update_parts() { return {}; }
  virtual void send_part(size_t /*part*/) {}
  virtual void finish_sending() {}
  virtual void gather_params() {}
  // Throws Error where what this says of other processes cannot be queued for the device alone.
  virtual void check_can_queue() {}

 protected:
  Optimizer& optimizer_;
};

// What of an optimizer is the library's own: the other processes, and the device.
class StepInside {
 public:
  static StepInside& of(Optimizer& optimizer) { return *optimizer.inside_; }
  explicit StepInside(Optimizer& optimizer);
  ~StepInside();
  StepInside(const StepInside&) = delete;
  StepInside& operator=(const StepInside&) = delete;

  bool is_on_device();
  // Parameters are everywhere then. Where one of several processes cannot make the step, it throws,
  // and none makes it: the others hear of it from their results and from settle_counts().
  StepResult step_on_device();

  // Optimizer's, of the same names.
  void prepare_queued_steps(const QueuedStepSources& sources);
  QueuedStep queue_step();
  void end_queued_steps();
  // Throws Error(InvalidArgument) between the first and the last of them.
  void refuse_while_queued() const;

  // Before counts of steps are saved or replaced. Throws Error(IoFailure), once, where steps were
  // counted that another process kept this one from making; the counts are right then.
  void settle_counts();

  std::unique_ptr<Peers> peers;
  // Where it is set, parameters on the CPU are stepped as if they lay on a device, by these
  // kernels: for tests without a GPU, with the kernels' CPU twins.
  const kernels::DeviceApi* device_api = nullptr;

 private:
  class Turn;

  bool is_queueing() const;  // from prepare_queued_steps() to end_queued_steps()
  DeviceStepper& stepper();  // made when it is first asked for
  void check_can_step();     // throws what step_on_device() throws before anything is queued
  void prepare_here(const QueuedStepSources& sources);

  Optimizer& optimizer_;
  std::unique_ptr<DeviceStepper> device_stepper_;  // from the first step on a device on
};

// Parameters of this process that have a gradient.
int64_t own_grad_count(Optimizer& optimizer);

// Tells the configuration's timers, if it has any, that a section begins and ends; with
// barrier_with_L1_time all ranks begin it together. Names are the reference's.
class TimedSection {
 public:
  TimedSection(Optimizer& optimizer, const char* name) : timers_(optimizer.config().timers) {
    name_ = name;
    if (!timers_) return;
    if (optimizer.config().barrier_with_L1_time) StepInside::of(optimizer).peers->barrier();
    timers_(name_, TimerEvent::Start);
  }
  ~TimedSection() {
    if (timers_) timers_(name_, TimerEvent::Stop);
  }
  TimedSection(const TimedSection&) = delete;
  TimedSection& operator=(const TimedSection&) = delete;

 private:
  const TimerFn& timers_;
  const char* name_ = nullptr;
};

// What a parameter adds to the global norm and the zero count: nothing if it has no gradient, is
// the second copy of a shared weight, or is held by another tensor-parallel rank, too, which counts
// it (`is_duplicate`, set by the layer-wise optimizer). A gradient that is not finite always shows.
double square_sum_for_norm(const OptimizedParam& param);
int64_t zeros_in_grad(const OptimizedParam& param, double grad_scale);  // of fp32(grad * scale)

// sqrt of the sum, in the order given: by parameter id, whoever owns them.
double norm_of(std::span<const double> square_sums);

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
