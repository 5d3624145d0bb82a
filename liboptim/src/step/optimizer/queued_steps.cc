// Steps that a trainer records in a graph of its own: what they need, and what cannot be.
#include <ckpt/error.h>
#include <exception>
#include <string>

#include "step/communication/collectives.h"
#include "step/optimizer/peers_and_device.h"
#include "step/optimizer/turn.h"

namespace optim {
namespace {

[[noreturn]] void refuse_as(ckpt::ErrorCode code, const char* key, const std::string& problem) {
  throw ckpt::Error(code, {.file = {}, .key = key}, problem);
}

void check_config(const OptimizerConfig& config) {
  if (config.optimizer_cuda_graph) {
    refuse_as(ckpt::ErrorCode::Unsupported, "optimizer_cuda_graph",
              "a queued step is for a graph of the caller's, which cannot hold another");
  }
  if (config.barrier_with_L1_time && config.timers) {
    refuse_as(ckpt::ErrorCode::Unsupported, "barrier_with_L1_time",
              "the host waits in a barrier, so that a step cannot be queued");
  }
}

void check_tensor(const char* key, const at::Tensor& tensor, const at::TensorOptions& wanted) {
  if (tensor.scalar_type() != wanted.dtype() || tensor.device() != wanted.device() ||
      !tensor.is_contiguous()) {
    const char* const type = wanted.dtype() == at::kDouble ? "float64" : "float32";
    std::string problem = "expected a contiguous tensor of ";
    problem.append(type).append(" on ").append(wanted.device().str());
    refuse_as(ckpt::ErrorCode::InvalidArgument, key, problem);
  }
}

void check_sources(const QueuedStepSources& sources, const at::Device& device,
                   Optimizer& optimizer) {
  constexpr auto kInvalid = ckpt::ErrorCode::InvalidArgument;
  const auto groups = static_cast<int64_t>(optimizer.param_groups().size());
  if (!sources.rates.defined()) refuse_as(kInvalid, "rates", "there are none");
  check_tensor("rates", sources.rates, at::TensorOptions(at::kDouble).device(device));
  if (sources.rates.sizes() != at::IntArrayRef({groups, 2})) {
    refuse_as(kInvalid, "rates",
              "expected lr and weight decay of " + std::to_string(groups) +
                  " groups: " + std::to_string(groups) + " rows of two");
  }
  const OptimizerConfig& config = optimizer.config();
  if (!sources.loss_scale.defined()) {
    if (config.fp16 && !config.loss_scale) {
      refuse_as(kInvalid, "loss_scale",
                "the loss scale changes from step to step: a queued step has to find it on the "
                "device");
    }
    return;
  }
  if (!scales_loss(config)) {
    refuse_as(kInvalid, "loss_scale", "the configuration does not scale the loss");
  }
  check_tensor("loss_scale", sources.loss_scale, at::TensorOptions(at::kFloat).device(device));
  if (sources.loss_scale.numel() != 1) refuse_as(kInvalid, "loss_scale", "expected one element");
}

}  // namespace

bool StepInside::is_queueing() const {
  return device_stepper_ != nullptr && device_stepper_->is_prepared();
}

void StepInside::refuse_while_queued() const {
  if (!is_queueing()) return;
  refuse_as(ckpt::ErrorCode::InvalidArgument, "prepare_queued_steps",
            "steps are queued now; end_queued_steps() comes first");
}

void StepInside::prepare_here(const QueuedStepSources& sources) {
  const OptimizerConfig& config = optimizer_.config();
  check_config(config);
  if (!is_on_device()) {
    refuse_as(ckpt::ErrorCode::Unsupported, "device",
              "only steps of parameters on a GPU can be queued");
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
    refuse_as(ckpt::ErrorCode::InvalidArgument, "prepare_queued_steps",
              "another process cannot queue steps");
  }
  translate_c10d_errors("the first operations of a queued step",
                        [&] { Turn(optimizer_, *peers, stepper()).rehearse(); });
}

QueuedStep StepInside::queue_step() {
  if (!is_queueing()) {
    refuse_as(ckpt::ErrorCode::InvalidArgument, "prepare_queued_steps",
              "prepare_queued_steps() comes first");
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
