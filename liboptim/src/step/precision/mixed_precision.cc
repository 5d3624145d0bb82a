#include <optim/mixed_precision.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <cmath>
#include <string>
#include <utility>

#include "rules/refuse_key.h"
#include "step/loops/grad_stats_kernels.h"
#include "step/optimizer/offload_choice.h"
#include "step/optimizer/peers_and_device.h"
#include "step/tensors/param_storage.h"

namespace optim {
namespace {

bool is_fp32(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

bool is_float(const at::Tensor& tensor) {
  return is_fp32(tensor) || tensor.scalar_type() == at::kBFloat16 ||
         tensor.scalar_type() == at::kHalf;
}

void check_param(const OptimizedParam& param) {
  const at::Tensor& tensor = param.model.param;
  if (!tensor.defined()) refuse_key(param.model.info.name, "the parameter has no tensor");
  if (!is_float(tensor))
    refuse_key(param.model.info.name, "the parameter is not float32, bf16 or fp16");
  const bool is_known = tensor.device().is_cpu() || tensor.device().is_cuda();
  if (!is_known || !tensor.is_contiguous()) {
    refuse_key(param.model.info.name, "the parameter must be contiguous, on the CPU or a GPU");
  }
}

// Before the first step, so that none ends halfway.
void check_qkv_split(const OptimizerGroup& group, const OptimizerConfig& config) {
  if (!rule_named(group.rule_config.name()).has_tp_modes) return;
  const QkvSplit* const split = qkv_split_of(group.rule_config);
  for (const OptimizedParam& param : group.params) {
    if (!param.model.info.attributes.is_qkv) continue;
    const std::string& name = param.model.info.name;
    if (split == nullptr) {
      if (!config.muon_split_qkv) continue;
      refuse_key("muon_split_qkv", "the split of the rows of " + name + " is not given");
    }
    const int64_t rows = param.model.param.dim() == 2 ? param.model.param.size(0) : 0;
    bool fits = true;
    int64_t group_rows = 0;
    for (const int64_t part : {split->query_rows, split->key_rows, split->value_rows}) {
      fits &= part > 0 && part <= rows;
      group_rows += fits ? part : 0;
    }
    if (fits && rows % group_rows == 0) continue;
    refuse_key("muon_split_qkv", "the " + std::to_string(rows) + " rows of " + name +
                                     " are not a multiple of those of a query group");
  }
}

void check_grad(const OptimizedParam& param, const OptimizerConfig& config) {
  const at::Tensor& grad = param.model.main_grad;
  if (grad.sizes() != param.model.param.sizes()) {
    refuse_key(param.model.info.name, "the gradient has a different shape from the parameter");
  }
  if (!is_float(grad))
    refuse_key(param.model.info.name, "the gradient is not float32, bf16 or fp16");
  check_grad_type(param, config);
  if (!grad.device().is_cpu() || !grad.is_contiguous()) {
    refuse_key(param.model.info.name, "the gradient must be contiguous, on the CPU");
  }
}

std::vector<int64_t> shape_of_state(const std::vector<OptimizerGroup>& groups,
                                    const OptimizedParam& param, const std::string& name) {
  const at::IntArrayRef sizes = param.model.param.sizes();
  for (const OptimizerGroup& group : groups) {
    const auto begin = group.params.data(), end = begin + group.params.size();
    if (std::less<>()(&param, begin) || !std::less<>()(&param, end)) continue;
    for (StateSpec& spec : states_of(group.rule_config, {sizes.data(), sizes.size()})) {
      if (spec.name == name) return std::move(spec.shape);
    }
  }
  return sizes.vec();
}

}  // namespace

GroupOptimizer::GroupOptimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config)
    : Optimizer(std::move(config)),
      groups_(std::move(groups)),
      precision_(state_precision(this->config())) {
  for (const OptimizerGroup& group : groups_) {
    for (const OptimizedParam& param : group.params) check_param(param);
    check_qkv_split(group, this->config());
  }
  choose_offloaded(GroupOptimizer::param_groups(), this->config());
}

GroupOptimizer::~GroupOptimizer() = default;

std::vector<OptimizerGroup*> GroupOptimizer::param_groups() {
  std::vector<OptimizerGroup*> groups;
  for (OptimizerGroup& group : groups_) groups.push_back(&group);
  return groups;
}

bool GroupOptimizer::collect_grads() {
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    param->grad = at::Tensor();
    if (!param->model.main_grad.defined()) continue;
    check_grad(*param, config());
    param->grad = param->model.main_grad;
  }
  if (!scaler_) return false;
  const TimedSection timed(*this, "optimizer-unscale-and-check-inf");
  bool found_inf = false;
  for (OptimizedParam* const param : get_parameters()) {
    if (!param->grad.defined()) continue;
    param->grad = param->grad.to(at::kFloat);  // as the reference: fp32 ones are changed in place
    param->grad.mul_(scaler_->inverse_scale());
    found_inf |= !std::isfinite(sum_of_squares(param->grad));
  }
  return found_inf;
}

void GroupOptimizer::update_loss_scale(bool found_inf) {
  if (scaler_) scaler_->update(found_inf);
}

double GroupOptimizer::get_loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }

bool GroupOptimizer::step_with_ready_grads() {
  const at::NoGradGuard no_grad;
  std::vector<PendingUpdate> updates;
  for (OptimizerGroup& group : groups_) {
    for (OptimizedParam& param : group.params) {
      if (param.grad.defined()) updates.push_back({&group, &param});
    }
  }
  update_params(updates, precision_, grad_scale_);
  return true;
}

void GroupOptimizer::init_state() {
  const at::NoGradGuard no_grad;
  for (OptimizerGroup& group : groups_) {
    for (OptimizedParam& param : group.params) {
      unpack_param(param);
      const bool is_here = param.main_param.device() == home_of(param);
      const at::Tensor like =
          is_here ? param.main_param : at::empty(param.model.param.sizes(), at::kFloat);
      group.rule->init_state(like, param.state);
      pack_param(param, precision_);
    }
  }
}

void GroupOptimizer::set_master(OptimizedParam& param, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  if (value.sizes() != param.model.param.sizes()) {
    refuse_key(param.model.info.name, "the master has a different shape from the parameter");
  }
  store_master(param, value.to(home_of(param), at::kFloat), precision_);
}

void GroupOptimizer::set_state(OptimizedParam& param, const std::string& name,
                               const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  if (value.sizes() != at::IntArrayRef(shape_of_state(groups_, param, name))) {
    refuse_key(param.model.info.name, "the state has a different shape from what its rule keeps");
  }
  store_state(param, name, value.to(home_of(param), at::kFloat), precision_);
}

std::vector<OptimizerGroup> GroupOptimizer::release_groups() { return std::exchange(groups_, {}); }

FP32Optimizer::FP32Optimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config,
                             bool wrapped_later)
    : GroupOptimizer(std::move(groups), std::move(config)) {
  for (OptimizedParam* const param : get_parameters()) {
    if (!wrapped_later && !is_fp32(param->model.param)) {
      refuse_key(param->model.info.name, "the parameter is not float32");
    }
    param->main_param = param->model.param;
  }
}

Float16OptimizerWithFloat16Params::Float16OptimizerWithFloat16Params(
    std::vector<OptimizerGroup> groups, OptimizerConfig config)
    : GroupOptimizer(std::move(groups), std::move(config)) {
  scaler_ = make_grad_scaler(this->config());
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    const at::Tensor& model = param->model.param;
    // The caller's own tensor, so that it stays so when the tensor gets other storage.
    param->main_param = is_fp32(model) ? model : model.detach().to(home_of(*param), at::kFloat);
    pack_param(*param, precision_);
  }
}

void Float16OptimizerWithFloat16Params::reload_model_params() {
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    if (is_fp32(param->model.param)) continue;
    store_master(*param, param->model.param.to(at::kFloat), precision_);
  }
}

}  // namespace optim
