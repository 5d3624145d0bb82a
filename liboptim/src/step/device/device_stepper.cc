#include "step/device/device_stepper.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "rules/refuse_key.h"
#include "step/device/device_ops.h"
#include "step/tensors/param_storage.h"

namespace optim {
namespace {

// The parts of an update whose first decides what the step does, and updates nothing.
UpdateParts behind_control(const UpdateParts& parts) {
  UpdateParts all = {{}};
  all.insert(all.end(), parts.begin(), parts.end());
  if (parts.empty()) all.emplace_back();
  return all;
}

void check_not_offloaded(const std::vector<OptimizerGroup*>& groups) {
  for (const OptimizerGroup* const group : groups) {
    for (const OptimizedParam& param : group->params) {
      if (!param.is_offloaded) continue;
      refuse_key("optimizer_cpu_offload",
                 "the host updates offloaded parameters, so that a step cannot be queued",
                 ckpt::ErrorCode::Unsupported);
    }
  }
}

}  // namespace

DeviceStepper::DeviceStepper(const OptimizerConfig& config, const at::Device& device,
                             const kernels::DeviceApi& api)
    : config_(config), device_(device), api_(api), offload_(config, device, api) {}

void DeviceStepper::rebuild(DevicePlan plan) {
  kernels::DeviceStatus status = 0;
  auto step = api_.make_step(plan.plan, status);
  check_device(status, api_, "the step cannot be planned");
  at::Tensor memory = device_memory(step->device_bytes(), device_);
  check_device(step->bind(memory.mutable_data_ptr(), current_stream(device_)), api_,
               "the step's tables cannot be written");
  if (config_.optimizer_cuda_graph && !is_prepared()) {
    check_device(step->capture(), api_, "the step cannot be recorded");
  }
  step_ = std::move(step);
  memory_ = std::move(memory);
  plan_ = std::move(plan);
}

void DeviceStepper::check_types(const std::vector<OptimizerGroup*>& groups) const {
  for (const OptimizerGroup* const group : groups) {
    for (const OptimizedParam& param : group->params) {
      if (param.model.main_grad.defined()) check_grad_type(param, config_);
    }
  }
}

DevicePlan DeviceStepper::make_plan(const std::vector<OptimizerGroup*>& groups,
                                    uint32_t stats_count) const {
  const UpdateParts all_parts = offload_.has_work() ? behind_control(parts_) : parts_;
  return make_device_plan(groups, state_precision(config_), {device_, stats_count, all_parts});
}

void DeviceStepper::make_failure_stats(uint32_t stats_count) {
  if (failure_stats_.defined() && failure_stats_.size(0) == stats_count) return;
  failure_stats_ = at::zeros({stats_count, 2}, at::TensorOptions(at::kDouble).device(device_));
}

void DeviceStepper::set_host_values(const Scaling& scaling) {
  std::vector<kernels::GroupRates> rates;
  for (const OptimizerGroup* const group : plan_.groups) {
    rates.push_back({group->lr, group->weight_decay});
  }
  const kernels::DeviceStream stream = current_stream(device_);
  check_device(step_->set_rates(rates, stream), api_, "rates cannot be written");
  const kernels::ControlSettings settings = {
      scaling.inverse_loss_scale, static_cast<float>(config_.clip_grad), scaling.check_finite};
  check_device(step_->set_control(settings, stream), api_, "settings cannot be written");
}

void DeviceStepper::queue_stats(const std::vector<OptimizerGroup*>& groups, uint32_t stats_count,
                                const Scaling& scaling, const UpdateParts& parts) {
  make_failure_stats(stats_count);
  check_types(groups);
  parts_ = parts;
  offload_.prepare(groups);
  DevicePlan plan = make_plan(groups, stats_count);
  if (step_ && plan_.is_equal(plan)) {
    // Gradients that lie elsewhere than in the last step are all that may have changed.
    const kernels::DeviceStatus status = step_->set_grads(plan.grads(), current_stream(device_));
    if (status != 0) step_.reset();  // a part may be written
    check_device(status, api_, "gradients cannot be bound");
  } else if (settle_counts() == 0) {
    rebuild(std::move(plan));
  } else {
    rebuild(make_plan(groups, stats_count));
  }
  set_host_values(scaling);
  check_device(step_->queue_stats(current_stream(device_)), api_, "statistics cannot be queued");
}

at::Tensor DeviceStepper::stats() const {
  return at::from_blob(step_->stats(), {static_cast<int64_t>(plan_.plan.stats_count), 2},
                       at::TensorOptions(at::kDouble).device(device_));
}

at::Tensor DeviceStepper::stats_of_failure() {
  if (!failure_stats_.defined()) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "out of memory");
  failure_stats_.zero_();
  failure_stats_.narrow(0, 0, std::min<int64_t>(1, failure_stats_.size(0)))
      .fill_(std::numeric_limits<double>::quiet_NaN());
  return failure_stats_;
}

void DeviceStepper::queue_update(uint32_t part) {
  try {
    queue_part(part);
  } catch (...) {
    // A part may be queued: the device may have counted the step.
    if (is_prepared()) {
      must_prepare_again_ = true;  // a graph of the caller's may still read the tables
    } else {
      step_.reset();
    }
    offload_.abandon();
    throw;
  }
}

// With offloaded parameters the device's part 0 is the control alone, so that copies to the host
// run while it updates its own.
void DeviceStepper::queue_part(uint32_t part) {
  const auto queue = [this](uint32_t number) {
    check_device(step_->queue_update(number, current_stream(device_)), api_,
                 "the update cannot be queued");
  };
  if (!offload_.has_work()) return queue(part);
  if (part == 0) {
    queue(0);
    offload_.queue_copies(step_->control());
  }
  queue(part + 1);
  offload_.update(part + 1 < parts_.size() ? &parts_[part] : nullptr);
}

std::function<kernels::StepControl()> DeviceStepper::deferred_control() const {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(kernels::StepControl));
  const at::Tensor now = at::from_blob(const_cast<kernels::StepControl*>(step_->control()),
                                       {kBytes}, at::TensorOptions(at::kByte).device(device_));
  const at::Tensor copy = at::empty_like(now);
  copy.copy_(now);  // queued behind the step; later steps do not change it
  std::shared_ptr<c10::Event> copied;
  if (!device_.is_cpu()) {
    copied = std::make_shared<c10::Event>(device_.type());
    copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  return [copy, copied] {
    if (copied) copied->synchronize();  // whatever stream the caller is on by then
    const at::Tensor host = copy.cpu();
    kernels::StepControl control;
    std::memcpy(&control, host.const_data_ptr(), sizeof control);
    return control;
  };
}

kernels::StepControl DeviceStepper::read_control() const { return deferred_control()(); }

int64_t DeviceStepper::settle_counts() {
  const int64_t lost = offload_.take_lost_steps();
  if (!step_ || plan_.groups.empty()) return lost;
  const auto bytes = static_cast<int64_t>(plan_.groups.size() * sizeof(kernels::GroupSettings));
  const at::Tensor host = at::from_blob(const_cast<kernels::GroupSettings*>(step_->groups()),
                                        {bytes}, at::TensorOptions(at::kByte).device(device_))
                              .cpu();
  const auto* const groups = static_cast<const kernels::GroupSettings*>(host.const_data_ptr());
  for (size_t i = 0; i < plan_.params.size(); ++i) {
    if (plan_.params[i]->is_offloaded) continue;  // counted when it was updated
    const uint32_t group = plan_.plan.params[i].slot.group;
    const bool is_ours = plan_.params[i]->step == plan_.plan.groups[group].settings.step;
    if (is_ours) plan_.params[i]->step = groups[group].step;  // else it was loaded since
  }
  int64_t most = lost;
  for (size_t i = 0; i < plan_.groups.size(); ++i) {
    int64_t& counted = plan_.plan.groups[i].settings.step;
    most = std::max(most, counted - groups[i].step);
    counted = groups[i].step;
  }
  return most;
}

void DeviceStepper::count_step() {
  for (OptimizedParam* const param : plan_.params) {
    if (!param->is_offloaded) ++param->step;
  }
  for (kernels::StepGroup& group : plan_.plan.groups) ++group.settings.step;
}

void DeviceStepper::prepare(const std::vector<OptimizerGroup*>& groups,
                            const Preparation& preparation) {
  check_not_offloaded(groups);
  settle_counts();  // and earlier steps are done
  step_.reset();
  make_failure_stats(preparation.stats_count);
  check_types(groups);
  parts_ = preparation.parts;
  offload_.prepare(groups);  // none, but where others were before
  sources_ = preparation.sources;
  must_prepare_again_ = false;
  try {
    rebuild(make_plan(groups, preparation.stats_count));
    kernels::DeviceSources sources;
    sources.rates = static_cast<const kernels::GroupRates*>(sources_.rates.const_data_ptr());
    if (sources_.loss_scale.defined()) {
      sources.loss_scale = sources_.loss_scale.const_data_ptr<float>();
    }
    check_device(step_->read_from(sources), api_, "rates cannot be read from the device");
    check_device(step_->warm_up(), api_, "kernels cannot be loaded");
    set_host_values(preparation.scaling);
    read_control();  // waits: replays may run on any stream
  } catch (...) {
    step_.reset();
    sources_ = {};
    throw;
  }
}

void DeviceStepper::queue_prepared(const std::vector<OptimizerGroup*>& groups) {
  if (!is_prepared() || must_prepare_again_) {
    refuse_key({}, "prepare_queued_steps() comes first, and after a step that failed");
  }
  check_types(groups);
  const DevicePlan plan = make_plan(groups, plan_.plan.stats_count);
  if (!plan_.is_equal(plan)) {
    refuse_key({},
               "parameters, states, groups or which gradients there are have changed "
               "since prepare_queued_steps()");
  }
  if (const OptimizedParam* const param = plan_.moved_grad(plan)) {
    refuse_key(param->model.info.name,
               "the gradient lies elsewhere than when prepare_queued_steps() was called");
  }
  check_device(step_->queue_stats(current_stream(device_)), api_, "statistics cannot be queued");
}

QueuedStep DeviceStepper::queued_results() const {
  auto* const control = const_cast<kernels::StepControl*>(step_->control());
  const auto view = [&](void* place, at::ScalarType type) {
    return at::from_blob(place, {1}, at::TensorOptions(type).device(device_));
  };
  static_assert(sizeof control->skip == sizeof(int32_t));
  return {view(&control->skip, at::kInt), view(&control->failed, at::kInt),
          view(&control->grad_norm, at::kDouble), view(&control->zero_count, at::kLong)};
}

void DeviceStepper::end_prepared() {
  settle_counts();
  step_.reset();  // the next one reads no sources
  sources_ = {};
}

}  // namespace optim
