#include "step/device/offload_stepper.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include <optim/update_rule.h>

#include "rules/refuse_key.h"
#include "step/device/device_ops.h"
#include "step/device/device_plan.h"
#include "step/device/element_updates.h"
#include "step/rules/chunks.h"
#include "step/tensors/param_storage.h"

namespace optim {
namespace {

constexpr uint64_t kPage = 4096;

[[noreturn]] void fail(std::string problem, std::string hint = {}) {
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = {}, .key = "optimizer_cpu_offload"},
                    std::move(problem), std::move(hint));
}

constexpr uint32_t kControlMark = 0;
constexpr uint64_t kPlace = 256;  // gradients and parameters begin at its multiples
static_assert(sizeof(kernels::StepControl) <= kPlace);

uint64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

uint64_t room_for(const at::Tensor& tensor) {
  return (bytes_of(tensor) + kPlace - 1) / kPlace * kPlace;
}

float* checked_on_host(const OptimizedParam& param, const at::Tensor& tensor) {
  if (tensor.sizes() != param.model.param.sizes() || !tensor.is_contiguous() ||
      !tensor.device().is_cpu() || tensor.scalar_type() != at::kFloat) {
    refuse_key(param.model.info.name,
               "expected a contiguous fp32 master and states of the parameter's shape on "
               "the CPU, which updates it");
  }
  return tensor.mutable_data_ptr<float>();
}

// All but where the gradient and the parameter lie on the host.
ElementSpan span_of(const OptimizerGroup& group, const OptimizedParam& param) {
  kernels::GroupSettings settings = device_group(group, param.step).settings;
  settings.step += 1;
  ElementSpan span;
  span.rule = settings.rule;
  span.scalars = kernels::make_scalars(settings);
  span.grad_type = device_type(param, param.model.main_grad);
  size_t index = 0;
  for (const std::string_view name : group.rule->state_names()) {
    span.state[index++] = checked_on_host(param, param.state.at(std::string(name)));
  }
  if (has_master(param)) {
    span.main = checked_on_host(param, param.main_param);
    span.model_type = device_type(param, param.model.param);
  }
  span.count = param.model.param.numel();
  return span;
}

struct SpanPart {
  size_t span;
  int64_t begin;
};

void update_spans(const std::vector<ElementSpan>& spans) {
  std::vector<SpanPart> parts;
  for (size_t i = 0; i < spans.size(); ++i) {
    for (int64_t begin = 0; begin < spans[i].count; begin += kChunk) parts.push_back({i, begin});
  }
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto& [which, begin] = parts[static_cast<size_t>(i)];
      const ElementSpan& span = spans[which];
      update_elements(span.part(begin, std::min(kChunk, span.count - begin)));
    }
  });
}

}  // namespace

HostBlock::HostBlock(uint64_t bytes, const kernels::DeviceApi* pins_with)
    : bytes_((bytes + kPage - 1) / kPage * kPage) {
  try {
    memory_ = at::empty({static_cast<int64_t>(bytes_ + kPage)}, at::kByte);
  } catch (const c10::Error&) {
    fail("out of memory: " + std::to_string(bytes_) + " bytes for what travels to the CPU");
  }
  auto* const memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
  const auto place = reinterpret_cast<uintptr_t>(memory);
  begin_ = memory + (kPage - place % kPage) % kPage;
  if (pins_with == nullptr) return;
  if (const kernels::DeviceStatus status = pins_with->pin_host(begin_, bytes_)) {
    fail(std::to_string(bytes_) +
             " bytes of host memory cannot be page-locked: " + pins_with->status_text(status),
         "pin_cpu_grads and pin_cpu_params can be false");
  }
  pinned_by_ = pins_with;
}

HostBlock::HostBlock(HostBlock&& other) noexcept { *this = std::move(other); }

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(begin_, other.begin_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_by_, other.pinned_by_);
  return *this;
}

HostBlock::~HostBlock() {
  if (pinned_by_ != nullptr) (void)pinned_by_->unpin_host(begin_);
}

OffloadStepper::OffloadStepper(const OptimizerConfig& config, const at::Device& device,
                               const kernels::DeviceApi& api)
    : config_(config), device_(device), api_(api) {}

void OffloadStepper::prepare(const std::vector<OptimizerGroup*>& groups) {
  items_.clear();
  has_control_ = false;
  for (OptimizerGroup* const group : groups) {
    for (OptimizedParam& param : group->params) {
      if (!param.is_offloaded || !param.model.main_grad.defined()) continue;
      create_zero_states(*group->rule, param, state_precision(config_));
      (void)span_of(*group, param);  // throws what is wrong before anything moves
      items_.push_back({group, &param, 0, 0});
    }
  }
  if (has_work()) place();
}

// What travels lies in one piece of memory for each direction; growing ends what is on its way.
void OffloadStepper::place() {
  uint64_t grad_bytes = kPlace, param_bytes = 0;  // the control comes first
  for (Item& item : items_) {
    item.grad_offset = grad_bytes;
    item.param_offset = param_bytes;
    grad_bytes += room_for(item.param->model.main_grad);
    param_bytes += room_for(item.param->model.param);
  }
  if (grad_bytes > grads_.bytes() || param_bytes > params_.bytes()) copies_.reset();
  if (grad_bytes > grads_.bytes()) {
    grads_ = {};
    grads_ = HostBlock(grad_bytes, config_.pin_cpu_grads ? &api_ : nullptr);
  }
  if (param_bytes > params_.bytes()) {
    params_ = {};
    params_ = HostBlock(param_bytes, config_.pin_cpu_params ? &api_ : nullptr);
  }
  if (copies_) return;
  kernels::DeviceStatus status = 0;
  copies_ = api_.make_host_copies(config_.overlap_cpu_optimizer_d2h_h2d, status);
  check_device(status, api_, "there are no streams for copies to the host");
}

void OffloadStepper::queue_copies(const kernels::StepControl* control) {
  const auto check = [&](kernels::DeviceStatus status) {
    check_device(status, api_, "gradients cannot be copied to the host");
  };
  check(copies_->follow(current_stream(device_)));
  check(copies_->to_host(grads_.at(0), control, sizeof *control));
  const bool overlaps = config_.overlap_cpu_optimizer_d2h_h2d;
  if (overlaps) check(copies_->mark(kControlMark));
  uint32_t mark = kControlMark;
  for (Item& item : items_) {
    const auto& [info, param, grad] = item.param->model;
    item.mark = overlaps ? ++mark : kControlMark;
    if (param.numel() > 0) {
      check(copies_->to_host(grads_.at(item.grad_offset), grad.const_data_ptr(), bytes_of(grad)));
      if (!has_master(*item.param)) {
        check(copies_->to_host(params_.at(item.param_offset), param.const_data_ptr(),
                               bytes_of(param)));
      }
    }
    if (overlaps) check(copies_->mark(item.mark));
  }
  if (!overlaps) check(copies_->mark(kControlMark));
}

const kernels::StepControl& OffloadStepper::control() {
  const auto& decided = *reinterpret_cast<const kernels::StepControl*>(grads_.at(0));
  if (has_control_) return decided;
  check_device(copies_->wait(kControlMark), api_, "gradients did not arrive");
  has_control_ = true;
  if (decided.failed != 0 && decided.check_finite == 0) ++lost_steps_;
  return decided;
}

void OffloadStepper::abandon() {
  items_.clear();
  copies_.reset();
}

void OffloadStepper::update(const std::vector<uint32_t>* ids) {
  std::vector<Item*> items;
  for (Item& item : items_) {
    const bool is_asked_for =
        ids == nullptr || std::ranges::find(*ids, item.param->id) != ids->end();
    if (!item.is_done && is_asked_for) items.push_back(&item);
  }
  if (items.empty()) return;
  if (config_.overlap_cpu_optimizer_d2h_h2d) {
    for (Item* const& item : items) update_together({&item, 1});
  } else {
    update_together(items);
  }
  check_device(copies_->join(current_stream(device_)), api_,
               "the device cannot wait for parameters");
}

void OffloadStepper::update_together(std::span<Item* const> items) {
  const kernels::StepControl& decided = control();
  std::vector<ElementSpan> spans;
  for (Item* const item : items) {
    item->is_done = true;
    check_device(copies_->wait(item->mark), api_, "gradients did not arrive");
    if (decided.skip != 0) continue;
    ElementSpan span = span_of(*item->group, *item->param);
    span.inverse_loss_scale = decided.inverse_loss_scale;
    span.clip = decided.clip;
    span.grad = grads_.at(item->grad_offset);
    std::byte* const staged = params_.at(item->param_offset);
    if (has_master(*item->param)) {
      span.model = staged;
    } else {
      span.main = reinterpret_cast<float*>(staged);
    }
    spans.push_back(span);
  }
  if (decided.skip != 0) return;
  update_spans(spans);
  for (Item* const item : items) send(*item);
}

void OffloadStepper::send(Item& item) {
  ++item.param->step;
  const at::Tensor& param = item.param->model.param;
  if (param.numel() == 0) return;
  check_device(
      copies_->to_device(param.mutable_data_ptr(), params_.at(item.param_offset), bytes_of(param)),
      api_, "parameters cannot be copied to the device");
}

}  // namespace optim
