#include "step/optimizer/turn.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "rules/refuse_key.h"
#include "step/communication/collectives.h"

namespace optim {
namespace {

// Of a step that was made, whenever it is asked for.
kernels::StepControl made_control(const std::function<kernels::StepControl()>& control) {
  const kernels::StepControl found = control();
  if (found.failed == 0) return found;
  refuse_key("device", "another process could not make this step, so that nothing was changed",
             ckpt::ErrorCode::IoFailure);
}

void check_config(const OptimizerConfig& config) {
  if (config.optimizer_cuda_graph) {
    refuse_key("optimizer_cuda_graph",
               "a queued step is for a graph of the caller's, which cannot hold another",
               ckpt::ErrorCode::Unsupported);
  }
  if (config.barrier_with_L1_time && config.timers) {
    refuse_key("barrier_with_L1_time",
               "the host waits in a barrier, so that a step cannot be queued",
               ckpt::ErrorCode::Unsupported);
  }
}

void check_tensor(const char* key, const at::Tensor& tensor, const at::TensorOptions& wanted) {
  if (tensor.scalar_type() != wanted.dtype() || tensor.device() != wanted.device() ||
      !tensor.is_contiguous()) {
    const char* const type = wanted.dtype() == at::kDouble ? "float64" : "float32";
    std::string problem = "expected a contiguous tensor of ";
    problem.append(type).append(" on ").append(wanted.device().str());
    refuse_key(key, problem);
  }
}

void check_sources(const QueuedStepSources& sources, const at::Device& device,
                   Optimizer& optimizer) {
  const auto groups = static_cast<int64_t>(optimizer.param_groups().size());
  if (!sources.rates.defined()) refuse_key("rates", "there are none");
  check_tensor("rates", sources.rates, at::TensorOptions(at::kDouble).device(device));
  if (sources.rates.sizes() != at::IntArrayRef({groups, 2})) {
    refuse_key("rates", "expected lr and weight decay of " + std::to_string(groups) +
                            " groups: " + std::to_string(groups) + " rows of two");
  }
  const OptimizerConfig& config = optimizer.config();
  if (!sources.loss_scale.defined()) {
    if (config.fp16 && !config.loss_scale) {
      refuse_key("loss_scale",
                 "the loss scale changes from step to step: a queued step has to find it on the "
                 "device");
    }
    return;
  }
  if (!scales_loss(config)) {
    refuse_key("loss_scale", "the configuration does not scale the loss");
  }
  check_tensor("loss_scale", sources.loss_scale, at::TensorOptions(at::kFloat).device(device));
  if (sources.loss_scale.numel() != 1) refuse_key("loss_scale", "expected one element");
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

bool StepInside::is_queueing() const {
  return device_stepper_ != nullptr && device_stepper_->is_prepared();
}

void StepInside::refuse_while_queued() const {
  if (!is_queueing()) return;
  refuse_key("prepare_queued_steps", "steps are queued now; end_queued_steps() comes first");
}

void StepInside::prepare_here(const QueuedStepSources& sources) {
  const OptimizerConfig& config = optimizer_.config();
  check_config(config);
  if (!is_on_device()) {
    refuse_key("device", "only steps of parameters on a GPU can be queued",
               ckpt::ErrorCode::Unsupported);
  }
  check_can_step();
  check_sources(sources, peers->device(), optimizer_);
  peers->check_can_queue();
  stepper().prepare(optimizer_.param_groups(), {.stats_count = peers->stats_count(),
                                                .parts = peers->update_parts(),
                                                .scaling = scaling_of(optimizer_),
                                                .sources = sources});
}

// Where one process cannot, none does: its peers would wait for it in the first queued step.
void StepInside::prepare_queued_steps(const QueuedStepSources& sources) {
  const OnDevice on_device(peers->device());
  if (!peers->are_there()) return prepare_here(sources);
  std::exception_ptr problem;
  try {
    prepare_here(sources);
  } catch (...) {
    problem = std::current_exception();
  }
  const bool is_refused = peers->any(problem != nullptr);
  if (is_refused && device_stepper_) device_stepper_->end_prepared();
  if (problem) std::rethrow_exception(problem);
  if (is_refused) {
    refuse_key("prepare_queued_steps", "another process cannot queue steps");
  }
  translate_c10d_errors("the first operations of a queued step",
                        [&] { Turn(optimizer_, *peers, stepper()).rehearse(); });
}

QueuedStep StepInside::queue_step() {
  if (!is_queueing()) {
    refuse_key("prepare_queued_steps", "prepare_queued_steps() comes first");
  }
  const OnDevice on_device(peers->device());
  return translate_c10d_errors("a queued step",
                               [&] { return Turn(optimizer_, *peers, stepper()).queue(); });
}

void StepInside::end_queued_steps() {
  if (!is_queueing()) return;
  const OnDevice on_device(peers->device());
  device_stepper_->end_prepared();
}

}  // namespace optim
