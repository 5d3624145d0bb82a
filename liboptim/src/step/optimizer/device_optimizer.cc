// An optimizer's steps where the parameters lie on a GPU, and what a process without peers says.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <c10/core/DeviceGuard.h>

#include <ckpt/error.h>
#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "step/communication/collectives.h"
#include "step/device/device_ops.h"
#include "step/device/device_stepper.h"
#include "step/optimizer/inside.h"
#include "step/optimizer/offload_choice.h"
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

namespace {

// What this process could not do while others count on it: they get their answers first.
class Failure {
 public:
  explicit Failure(bool has_peers) : has_peers_(has_peers) {}

  template <class Body>
  void guard(Body&& body) {
    if (error_) return;
    try {
      body();
    } catch (...) {
      if (!has_peers_) throw;
      error_ = std::current_exception();
    }
  }
  bool is_there() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool has_peers_;
  std::exception_ptr error_;
};

// Of a step that was made, whenever it is asked for.
kernels::StepControl made_control(const std::function<kernels::StepControl()>& control) {
  const kernels::StepControl found = control();
  if (found.failed == 0) return found;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = {}, .key = "device"},
                    "another process could not make this step, so that nothing was changed");
}

}  // namespace

// One step on a device. Whatever fails on this process, its peers find it in every collective
// operation that they enter.
class StepInside::Turn {
 public:
  Turn(Optimizer& optimizer, Peers& peers, DeviceStepper& stepper)
      : optimizer_(optimizer), peers_(peers), stepper_(stepper), failure_(peers.are_there()) {}

  StepResult take() {
    StepResult result;
    {
      const TimedSection timed(optimizer_, "optimizer-inner-step");
      queue();
      if (!failure_.is_there()) result = outcome();
    }
    if (parts_.empty() && peers_gather(result)) peers_.gather_params();
    failure_.rethrow();
    return result;
  }

 private:
  void queue() {
    const auto inverse_scale = static_cast<float>(1 / optimizer_.get_loss_scale());
    parts_ = peers_.update_parts();
    failure_.guard([&] {
      stepper_.queue_stats(optimizer_.param_groups(), peers_.stats_count(),
                           {inverse_scale, scales_}, parts_);
    });
    took_part_ = !failure_.is_there();
    sum_stats();
    for (size_t part = 0; part < std::max<size_t>(1, parts_.size()); ++part) {
      failure_.guard([&] { stepper_.queue_update(static_cast<uint32_t>(part)); });
      if (!parts_.empty()) peers_.send_part(part);
    }
    if (!parts_.empty()) peers_.finish_sending();
  }

  void sum_stats() {
    try {
      stats_ = took_part_ ? stepper_.stats() : stepper_.stats_of_failure();
      peers_.sum_stats(stats_);
    } catch (...) {
      failure_.rethrow();  // the first thing that went wrong
      throw;
    }
  }

  // Whether the others send their parameters now, and wait for this process's.
  bool peers_gather(const StepResult& result) const {
    if (!failure_.is_there()) return result.update_successful;
    if (!scales_) return true;  // they do not know yet
    return took_part_ && std::isfinite(at::sum(stats_).item<double>());
  }

  StepResult outcome() {
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

  Optimizer& optimizer_;
  Peers& peers_;
  DeviceStepper& stepper_;
  Failure failure_;
  std::vector<std::vector<uint32_t>> parts_;
  at::Tensor stats_;
  const bool scales_ = optimizer_.config().fp16 || optimizer_.config().loss_scale.has_value();
  bool took_part_ = false;  // in the sum of statistics, with statistics
};

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
  const at::Device where = peers->device();
  const c10::OptionalDeviceGuard guard(where.is_cpu() ? std::nullopt : std::optional(where));
  if (!device_stepper_) {
    const kernels::DeviceApi& api = device_api != nullptr ? *device_api : optim::device_api(where);
    device_stepper_ = std::make_unique<DeviceStepper>(optimizer_.config(), where, api);
    if (where.is_cpu()) {
      choose_offloaded(optimizer_.param_groups(), optimizer_.config(), /*cpu_stands_for_gpu=*/true);
    }
  }
  return translate_c10d_errors("a step on the device",
                               [&] { return Turn(optimizer_, *peers, *device_stepper_).take(); });
}

void StepInside::settle_counts() {
  if (!device_stepper_ || !peers->are_there()) return;
  if (const int64_t steps = device_stepper_->settle_counts()) {
    throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = {}, .key = "device"},
                      std::to_string(steps) +
                          " of the last steps changed nothing, since another "
                          "process could not make them");
  }
}

}  // namespace optim
