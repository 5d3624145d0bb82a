// An optimizer's steps where the parameters lie on a GPU, and what a process without peers says.
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <ckpt/error.h>
#include <algorithm>
#include <optional>

#include "step/communication/collectives.h"
#include "step/device/device_ops.h"
#include "step/device/device_stepper.h"
#include "step/optimizer/inside.h"
#include "step/optimizer/timed_section.h"

namespace optim {

Peers::~Peers() = default;

at::Device Peers::device() {
  const std::vector<OptimizedParam*> params = optimizer_.get_parameters();
  return params.empty() ? at::kCPU : params.front()->model.param.device();
}

int64_t Peers::grad_count() { return own_grad_count(optimizer_); }

uint32_t Peers::stats_count() {
  uint32_t count = 0;
  for (const OptimizedParam* const param : optimizer_.get_parameters()) {
    count = std::max(count, param->id + 1);
  }
  return count;
}

int64_t own_grad_count(Optimizer& optimizer) {
  const std::vector<OptimizedParam*> params = optimizer.get_parameters();
  return std::ranges::count_if(params,
                               [](const OptimizedParam* param) { return param->grad.defined(); });
}

StepInside::StepInside(Optimizer& optimizer)
    : peers(std::make_unique<Peers>(optimizer)), optimizer_(optimizer) {}

StepInside::~StepInside() = default;

bool StepInside::is_on_device() {
  if (device_api != nullptr || !peers->device().is_cpu()) return true;
  if (!optimizer_.config().optimizer_cuda_graph) return false;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "optimizer_cuda_graph"},
                    "only steps of parameters on a GPU can be recorded");
}

StepResult StepInside::step_on_device() {
  const auto has_grad = [](const OptimizedParam* param) {
    return param->model.main_grad.defined();
  };
  if (!peers->are_there() && std::ranges::none_of(optimizer_.get_parameters(), has_grad)) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "no parameter has a gradient");
  }
  const auto is_part = [](const OptimizedParam* param) { return param->split != nullptr; };
  if (std::ranges::any_of(optimizer_.get_parameters(), is_part)) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "muon_tp_mode"},
                      "matrices that tensor-parallel ranks share are not stepped on a GPU; with "
                      "blockwise they are");
  }
  const at::NoGradGuard no_grad;
  const TimedSection timed(optimizer_, "optimizer-inner-step");
  const at::Device where = peers->device();
  const c10::OptionalDeviceGuard guard(where.is_cpu() ? std::nullopt : std::optional(where));
  if (!device_stepper_) {
    const kernels::DeviceApi& api = device_api != nullptr ? *device_api : optim::device_api(where);
    device_stepper_ = std::make_unique<DeviceStepper>(optimizer_.config(), where, api);
  }
  return translate_c10d_errors("a step on the device", [&] { return queue_step(); });
}

StepResult StepInside::queue_step() {
  DeviceStepper& stepper = *device_stepper_;
  const OptimizerConfig& config = optimizer_.config();
  const bool scales = config.fp16 || config.loss_scale.has_value();
  const auto inverse_scale = static_cast<float>(1 / optimizer_.get_loss_scale());
  stepper.queue_stats(optimizer_.param_groups(), peers->stats_count(), {inverse_scale, scales});
  at::Tensor stats = stepper.stats();
  peers->sum_stats(stats);
  stepper.queue_update();
  const auto control = stepper.deferred_control();
  StepResult result;
  if (scales) {
    const bool found_inf = control().skip != 0;
    optimizer_.update_loss_scale(found_inf);
    if (found_inf) return result;
  }
  stepper.count_step();
  result.update_successful = true;
  result.grad_norm = Deferred<double>([control] { return control().grad_norm; });
  if (config.log_num_zeros_in_grad) {
    result.num_zeros_in_grad = Deferred<int64_t>([control] { return control().zero_count; });
  }
  return result;
}

}  // namespace optim
