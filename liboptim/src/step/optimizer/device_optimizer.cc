// Optimizer's steps where the parameters lie on a GPU.
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <ckpt/error.h>
#include <optim/optimizer.h>
#include <algorithm>
#include <optional>

#include "step/communication/collectives.h"
#include "step/device/device_ops.h"
#include "step/device/device_stepper.h"
#include "step/optimizer/timed_section.h"

namespace optim {

at::Device Optimizer::device() {
  const std::vector<OptimizedParam*> params = get_parameters();
  return params.empty() ? at::kCPU : params.front()->model.param.device();
}

bool Optimizer::is_on_device() {
  if (device_api_ != nullptr || !device().is_cpu()) return true;
  if (!config_.optimizer_cuda_graph) return false;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "optimizer_cuda_graph"},
                    "only steps of parameters on a GPU can be recorded");
}

uint32_t Optimizer::stats_count() {
  uint32_t count = 0;
  for (const OptimizedParam* const param : get_parameters()) {
    count = std::max(count, param->id + 1);
  }
  return count;
}

StepResult Optimizer::step_on_device() {
  const auto has_grad = [](const OptimizedParam* param) {
    return param->model.main_grad.defined();
  };
  if (!has_peers() && std::ranges::none_of(get_parameters(), has_grad)) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "no parameter has a gradient");
  }
  const at::NoGradGuard no_grad;
  const TimedSection timed(*this, "optimizer-inner-step");
  const at::Device where = device();
  const c10::OptionalDeviceGuard guard(where.is_cpu() ? std::nullopt : std::optional(where));
  if (!device_stepper_) {
    const kernels::DeviceApi& api = device_api_ ? *device_api_ : device_api(where);
    device_stepper_ = std::make_unique<DeviceStepper>(config_, where, api);
  }
  return translate_c10d_errors("a step on the device", [&] { return queue_step(); });
}

StepResult Optimizer::queue_step() {
  DeviceStepper& stepper = *device_stepper_;
  const bool scales = config_.fp16 || config_.loss_scale.has_value();
  const auto inverse_scale = static_cast<float>(1 / get_loss_scale());
  stepper.queue_stats(param_groups(), stats_count(), {inverse_scale, scales});
  at::Tensor stats = stepper.stats();
  sum_stats(stats);
  stepper.queue_update();
  const auto control = stepper.deferred_control();
  StepResult result;
  if (scales) {
    const bool found_inf = control().skip != 0;
    update_loss_scale(found_inf);
    if (found_inf) return result;
  }
  stepper.count_step();
  result.update_successful = true;
  result.grad_norm = Deferred<double>([control] { return control().grad_norm; });
  if (config_.log_num_zeros_in_grad) {
    result.num_zeros_in_grad = Deferred<int64_t>([control] { return control().zero_count; });
  }
  return result;
}

}  // namespace optim
