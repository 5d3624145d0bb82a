// Steps of a DeviceStepper that are work for the device alone: nothing of the host's is read when
// they run.
#include <ATen/ops/from_blob.h>

#include <ckpt/error.h>
#include <cstddef>
#include <string>
#include <utility>

#include "step/device/device_ops.h"
#include "step/device/device_stepper.h"

namespace optim {
namespace {

[[noreturn]] void refuse_queueing(std::string key, const char* problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = std::move(key)}, problem);
}

void check_not_offloaded(const std::vector<OptimizerGroup*>& groups) {
  for (const OptimizerGroup* const group : groups) {
    for (const OptimizedParam& param : group->params) {
      if (!param.is_offloaded) continue;
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "optimizer_cpu_offload"},
                        "the host updates offloaded parameters, so that a step cannot be queued");
    }
  }
}

}  // namespace

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
    refuse_queueing({}, "prepare_queued_steps() comes first, and after a step that failed");
  }
  check_types(groups);
  const DevicePlan plan = make_plan(groups, plan_.plan.stats_count);
  if (!plan_.is_equal(plan)) {
    refuse_queueing({},
                    "parameters, states, groups or which gradients there are have changed "
                    "since prepare_queued_steps()");
  }
  if (const OptimizedParam* const param = plan_.moved_grad(plan)) {
    refuse_queueing(param->model.info.name,
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
