#include <optim/mixed_precision.h>

#include <ATen/core/grad_mode.h>

#include <ckpt/error.h>
#include <string>
#include <utility>

namespace optim {
namespace {

[[noreturn]] void refuse(const ParamInfo& info, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = info.name}, problem);
}

bool is_fp32(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

void check_param(const OptimizedParam& param) {
  const at::Tensor& tensor = param.model.param;
  if (!tensor.defined()) refuse(param.model.info, "the parameter has no tensor");
  if (!is_fp32(tensor) && tensor.scalar_type() != at::kBFloat16) {
    refuse(param.model.info, "the parameter is neither float32 nor bfloat16");
  }
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    refuse(param.model.info, "the parameter is not contiguous on the CPU");
  }
}

void check_grad(const OptimizedParam& param) {
  const at::Tensor& grad = param.model.main_grad;
  if (grad.sizes() != param.main_param.sizes()) {
    refuse(param.model.info, "the gradient has another shape than the parameter");
  }
  if (!is_fp32(grad) && grad.scalar_type() != at::kBFloat16) {
    refuse(param.model.info, "the gradient is neither float32 nor bfloat16");
  }
  if (!grad.is_contiguous()) refuse(param.model.info, "the gradient is not contiguous");
}

}  // namespace

GroupOptimizer::GroupOptimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config)
    : Optimizer(std::move(config)), groups_(std::move(groups)) {
  for (const OptimizerGroup& group : groups_) {
    for (const OptimizedParam& param : group.params) check_param(param);
  }
}

GroupOptimizer::~GroupOptimizer() = default;

std::vector<OptimizerGroup*> GroupOptimizer::param_groups() {
  std::vector<OptimizerGroup*> groups;
  for (OptimizerGroup& group : groups_) groups.push_back(&group);
  return groups;
}

bool GroupOptimizer::prepare_grads() {
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    param->grad = at::Tensor();
    if (!param->model.main_grad.defined()) continue;
    check_grad(*param);
    param->grad = param->model.main_grad.to(at::kFloat);  // the same tensor where it is fp32
  }
  return false;
}

bool GroupOptimizer::step_with_ready_grads() {
  const at::NoGradGuard no_grad;
  for (OptimizerGroup& group : groups_) {
    for (OptimizedParam& param : group.params) {
      if (!param.grad.defined()) continue;
      ++param.step;
      group.rule->update({&param.model.info, param.main_param, param.grad, &param.state},
                         {group.lr, group.weight_decay, param.step});
    }
  }
  return true;
}

void GroupOptimizer::init_state() {
  const at::NoGradGuard no_grad;
  for (OptimizerGroup& group : groups_) {
    for (OptimizedParam& param : group.params) {
      group.rule->init_state(param.main_param, param.state);
    }
  }
}

std::vector<OptimizerGroup> GroupOptimizer::release_groups() { return std::exchange(groups_, {}); }

FP32Optimizer::FP32Optimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config,
                             bool wrapped_later)
    : GroupOptimizer(std::move(groups), std::move(config)) {
  for (OptimizedParam* const param : get_parameters()) {
    if (!wrapped_later && !is_fp32(param->model.param)) {
      refuse(param->model.info, "the parameter is not float32");
    }
    param->main_param = param->model.param;
  }
}

Float16OptimizerWithFloat16Params::Float16OptimizerWithFloat16Params(
    std::vector<OptimizerGroup> groups, OptimizerConfig config)
    : GroupOptimizer(std::move(groups), std::move(config)) {
  for (OptimizedParam* const param : get_parameters()) {
    param->main_param = param->model.param.detach().to(at::kFloat);
  }
}

bool Float16OptimizerWithFloat16Params::step_with_ready_grads() {
  const bool success = GroupOptimizer::step_with_ready_grads();
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    if (!is_fp32(param->model.param)) param->model.param.copy_(param->main_param);
  }
  return success;
}

void Float16OptimizerWithFloat16Params::reload_model_params() {
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    if (!is_fp32(param->model.param)) param->main_param.copy_(param->model.param);
  }
}

}  // namespace optim
