#include "step/optimizer/turn.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <algorithm>
#include <cmath>
#include <utility>

#include "step/optimizer/peers_and_device.h"

namespace optim {
namespace {

// Of a step that was made, whenever it is asked for.
kernels::StepControl made_control(const std::function<kernels::StepControl()>& control) {
  const kernels::StepControl found = control();
  if (found.failed == 0) return found;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = {}, .key = "device"},
                    "another process could not make this step, so that nothing was changed");
}

}  // namespace

DeviceStepper::Scaling scaling_of(Optimizer& optimizer) {
  return {static_cast<float>(1 / optimizer.get_loss_scale()), scales_loss(optimizer.config())};
}

StepInside::Turn::Turn(Optimizer& optimizer, Peers& peers, DeviceStepper& stepper)
    : optimizer_(optimizer),
      peers_(peers),
      stepper_(stepper),
      failure_(peers.are_there()),
      scales_(scales_loss(optimizer.config())) {}

StepResult StepInside::Turn::take() {
  StepResult result;
  {
    const TimedSection timed(optimizer_, "optimizer-inner-step");
    const DeviceStepper::Scaling scaling = scaling_of(optimizer_);
    queue_all([&] {
      stepper_.queue_stats(optimizer_.param_groups(), peers_.stats_count(), scaling, parts_);
    });
    if (!failure_.is_there()) result = outcome();
  }
  if (parts_.empty() && peers_gather(result)) peers_.gather_params();
  failure_.rethrow();
  return result;
}

// Whether the step is made only the device knows: parameters travel in any case.
QueuedStep StepInside::Turn::queue() {
  queue_all([&] { stepper_.queue_prepared(optimizer_.param_groups()); });
  if (parts_.empty()) peers_.gather_params();
  failure_.rethrow();
  return stepper_.queued_results();
}

void StepInside::Turn::rehearse() {
  const auto count = static_cast<int64_t>(peers_.stats_count());
  stats_ = at::zeros({count, 2}, at::TensorOptions(at::kDouble).device(peers_.device()));
  peers_.sum_stats(stats_);
  parts_ = peers_.update_parts();
  for (size_t part = 0; part < parts_.size(); ++part) peers_.send_part(part);
  if (parts_.empty()) {
    peers_.gather_params();
  } else {
    peers_.finish_sending();
  }
}

void StepInside::Turn::queue_all(const std::function<void()>& stats) {
  parts_ = peers_.update_parts();
  failure_.guard(stats);
  took_part_ = !failure_.is_there();
  sum_stats();
  for (size_t part = 0; part < std::max<size_t>(1, parts_.size()); ++part) {
    failure_.guard([&] { stepper_.queue_update(static_cast<uint32_t>(part)); });
    if (!parts_.empty()) peers_.send_part(part);
  }
  if (!parts_.empty()) peers_.finish_sending();
}

void StepInside::Turn::sum_stats() {
  try {
    stats_ = took_part_ ? stepper_.stats() : stepper_.stats_of_failure();
    peers_.sum_stats(stats_);
  } catch (...) {
    failure_.rethrow();  // the first thing that went wrong
    throw;
  }
}

// Whether the others send their parameters now, and wait for this process's.
bool StepInside::Turn::peers_gather(const StepResult& result) const {
  if (!failure_.is_there()) return result.update_successful;
  if (!scales_) return true;  // they do not know yet
  return took_part_ && std::isfinite(at::sum(stats_).item<double>());
}

StepResult StepInside::Turn::outcome() {
  const auto control = stepper_.deferred_control();
  StepResult result;
  if (scales_) {
    const bool found_inf = made_control(control).skip != 0;
    optimizer_.update_loss_scale(found_inf);
    if (found_inf) return result;
  }
  stepper_.count_step();
  result.update_successful = true;
  result.grad_norm = Deferred<double>([control] { return made_control(control).grad_norm; });
  if (optimizer_.config().log_num_zeros_in_grad) {
    result.num_zeros_in_grad =
        Deferred<int64_t>([control] { return made_control(control).zero_count; });
  }
  return result;
}

}  // namespace optim
