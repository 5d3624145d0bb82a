#include <optim/optimizer.h>

#include <ATen/core/grad_mode.h>

#include <ckpt/error.h>
#include <algorithm>
#include <utility>

#include "step/grad_stats.h"

namespace optim {

Optimizer::Optimizer(OptimizerConfig config) : config_(std::move(config)) {
  if (config_.fp16) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "fp16"},
                      "fp16 parameters with loss scaling are not supported, only bf16 and fp32");
  }
}

Optimizer::~Optimizer() = default;

std::vector<OptimizedParam*> Optimizer::get_parameters() {
  std::vector<OptimizedParam*> params;
  for (OptimizerGroup* const group : param_groups()) {
    for (OptimizedParam& param : group->params) params.push_back(&param);
  }
  return params;
}

void Optimizer::bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  for (OptimizedParam* const param : get_parameters()) {
    param->model.main_grad = grad_of(param->model.info);
  }
}

void Optimizer::zero_grad(bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (OptimizedParam* const param : get_parameters()) {
    if (!param->grad.defined()) continue;
    if (set_to_none || param->grad.is_same(param->model.main_grad)) {
      param->grad = at::Tensor();
    } else {
      param->grad.zero_();
    }
  }
}

double Optimizer::get_grad_norm() {
  std::vector<OptimizedParam*> params = get_parameters();
  std::ranges::sort(params, {}, &OptimizedParam::id);
  std::vector<double> sums;
  for (const OptimizedParam* const param : params) sums.push_back(square_sum_for_norm(*param));
  return norm_of(sums);
}

void Optimizer::clip_grad_by_total_norm(double max_norm, double total_norm) {
  const at::NoGradGuard no_grad;
  const double coefficient = clip_coefficient(max_norm, total_norm);
  if (!(coefficient < 1)) return;
  for (OptimizedParam* const param : get_parameters()) {
    if (param->grad.defined()) param->grad.mul_(coefficient);
  }
}

double Optimizer::clip_grad_norm(double max_norm) {
  const double total_norm = get_grad_norm();
  if (max_norm > 0) clip_grad_by_total_norm(max_norm, total_norm);
  return total_norm;
}

int64_t Optimizer::count_zeros() {
  int64_t zeros = 0;
  for (const OptimizedParam* const param : get_parameters()) zeros += zeros_in_grad(*param);
  return zeros;
}

StepResult Optimizer::step() {
  StepResult result;
  if (prepare_grads()) return result;
  result.grad_norm = Deferred(clip_grad_norm(config_.clip_grad));
  if (config_.log_num_zeros_in_grad) result.num_zeros_in_grad = Deferred(count_zeros());
  result.update_successful = step_with_ready_grads();
  return result;
}

std::vector<std::vector<OptimizerGroup>> make_optimizer_groups(
    std::vector<Param> params, const OptimizerConfig& config, const ConfigOverrides& overrides,
    const std::optional<QkvSplit>& qkv_split) {
  std::vector<ParamInfo> infos;
  for (const Param& param : params) infos.push_back(param.info);
  std::vector<std::vector<OptimizerGroup>> chain;
  uint32_t id = 0;
  for (ParamGroup& group : get_param_groups(infos, config, overrides)) {
    if (chain.size() <= group.optimizer_index) chain.resize(group.optimizer_index + 1);
    OptimizerGroup made;
    made.lr = group.max_lr.value_or(config.lr.value_or(0));
    made.weight_decay = config.weight_decay * group.wd_mult;
    made.rule_config = rule_of_group(group, config, qkv_split);
    made.rule = make_rule(made.rule_config);
    for (const GroupedParam& grouped : group.params) {
      Param& param = params[grouped.index];
      param.info = grouped.info;  // with the attributes that grouping tagged
      made.params.emplace_back();
      made.params.back().id = id++;
      made.params.back().model = std::move(param);
    }
    const uint32_t optimizer = group.optimizer_index;
    group.params.clear();
    made.settings = std::move(group);
    chain[optimizer].push_back(std::move(made));
  }
  return chain;
}

}  // namespace optim
