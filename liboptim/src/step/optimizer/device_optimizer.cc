// An optimizer's steps where the parameters lie on a GPU, and what a process without peers says.

#include <algorithm>
#include <string>

#include "rules/refuse_key.h"
#include "step/communication/collectives.h"
#include "step/device/device_ops.h"
#include "step/optimizer/offload_choice.h"
#include "step/optimizer/turn.h"

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
  refuse_key("optimizer_cuda_graph", "only steps of parameters on a GPU can be recorded",
             ckpt::ErrorCode::Unsupported);
}

void StepInside::check_can_step() {
  const auto has_grad = [](const OptimizedParam* param) {
    return param->model.main_grad.defined();
  };
  if (!peers->are_there() && std::ranges::none_of(optimizer_.get_parameters(), has_grad)) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "no parameter has a gradient");
  }
  const auto is_part = [](const OptimizedParam* param) { return param->split != nullptr; };
  if (std::ranges::any_of(optimizer_.get_parameters(), is_part)) {
    refuse_key("muon_tp_mode",
               "matrices that tensor-parallel ranks share are not stepped on a GPU; with "
               "blockwise they are",
               ckpt::ErrorCode::Unsupported);
  }
}

DeviceStepper& StepInside::stepper() {
  if (device_stepper_) return *device_stepper_;
  const at::Device where = peers->device();
  const kernels::DeviceApi& api = device_api != nullptr ? *device_api : optim::device_api(where);
  device_stepper_ = std::make_unique<DeviceStepper>(optimizer_.config(), where, api);
  if (where.is_cpu()) {
    choose_offloaded(optimizer_.param_groups(), optimizer_.config(), /*cpu_stands_for_gpu=*/true);
  }
  return *device_stepper_;
}

StepResult StepInside::step_on_device() {
  refuse_while_queued();
  check_can_step();
  const OnDevice on_device(peers->device());
  DeviceStepper& made = stepper();
  return translate_c10d_errors("a step on the device",
                               [&] { return Turn(optimizer_, *peers, made).take(); });
}

void StepInside::settle_counts() {
  if (!device_stepper_) return;
  if (is_queueing()) {
    const OnDevice on_device(peers->device());
    device_stepper_->settle_counts();
    return;
  }
  if (!peers->are_there()) return;
  if (const int64_t steps = device_stepper_->settle_counts()) {
    refuse_key("device",
               std::to_string(steps) +
                   " of the last steps changed nothing, since another "
                   "process could not make them",
               ckpt::ErrorCode::IoFailure);
  }
}

}  // namespace optim
