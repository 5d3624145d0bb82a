#include <optim/optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <optim/emerging_rules.h>
#include <optim/grad_stats.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>

#include "rules/refuse_key.h"
#include "step/loops/grad_stats_kernels.h"
#include "step/optimizer/peers_and_device.h"

namespace optim {
namespace {

bool counts(const OptimizedParam& param) {
  return param.grad.defined() && !param.model.info.attributes.shared && !param.is_duplicate;
}

constexpr double kClipEpsilon = 1e-6;  // Megatron's clip_grads.py

}  // namespace

Optimizer::Optimizer(OptimizerConfig config)
    : config_(std::move(config)), inside_(std::make_unique<StepInside>(*this)) {}

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

void Optimizer::load_state_dict(const StateValue& state_dict) { prepare_load(state_dict)(); }

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
    if (!param->grad.defined()) continue;
    param->grad = param->grad.to(at::kFloat);  // clipped values of fewer bits would round twice
    param->grad.mul_(coefficient);
  }
}

double Optimizer::clip_grad_norm(double max_norm) {
  const double total_norm = get_grad_norm();
  if (max_norm > 0) clip_grad_by_total_norm(max_norm, total_norm);
  return total_norm;
}

int64_t Optimizer::count_zeros() {
  int64_t zeros = 0;
  for (const OptimizedParam* const param : get_parameters()) {
    zeros += zeros_in_grad(*param, grad_scale_);
  }
  return zeros;
}

bool Optimizer::prepare_grads() {
  const TimedSection timed(*this, "optimizer-copy-to-main-grad");
  const bool found_inf = inside_->peers->agree_on_overflow(collect_grads());
  update_loss_scale(found_inf);
  return found_inf;
}

at::Tensor Optimizer::scale_loss(const at::Tensor& loss) const {
  return at::mul(loss, get_loss_scale());
}

// The same on every rank: the norm and the count are.
void Optimizer::check_grads(double total_norm) {
  if (inside_->peers->grad_count() == 0) refuse_key({}, "no parameter has a gradient");
  if (std::isfinite(total_norm)) return;
  for (const OptimizedParam* const param : get_parameters()) {
    if (!std::isfinite(square_sum_for_norm(*param))) {
      refuse_key(param->model.info.name, "the gradient is infinite or NaN");
    }
  }
  refuse_key({}, "a gradient of another rank is infinite or NaN");
}

// Groups are the same on every rank, so that all take part, or none.
void Optimizer::check_states() {
  bool is_checked = false;
  std::optional<ckpt::Error> problem;
  for (const OptimizerGroup* const group : param_groups()) {
    if (!rule_named(group->rule_config.name()).checks_states) continue;
    is_checked = true;
    for (const OptimizedParam& param : group->params) {
      if (problem || !param.grad.defined()) continue;
      ParamState state = state_of(param);
      try {
        group->rule->check({&param.model.info, param.model.param, param.grad, &state});
      } catch (const ckpt::Error& error) {
        problem = error;
      }
    }
  }
  if (!is_checked) return;
  const bool is_refused = inside_->peers->any(problem.has_value());
  if (problem) throw ckpt::Error(*problem);
  if (!is_refused) return;
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "no step can begin from a state of another rank");
}

StepResult Optimizer::step() {
  if (inside_->is_on_device()) return inside_->step_on_device();
  StepResult result;
  if (prepare_grads()) return result;
  struct Unscaled {  // whatever happens, direct calls find gradients as they are
    Optimizer& optimizer;
    ~Unscaled() { optimizer.set_grad_scale(1); }
  };
  const Unscaled unscaled{*this};
  {
    const TimedSection timed(*this, "optimizer-clip-main-grad");
    const double norm = get_grad_norm();
    check_grads(norm);
    check_states();
    const double coefficient =
        config_.clip_grad > 0 ? clip_coefficient(config_.clip_grad, norm) : 1;
    if (coefficient < 1) set_grad_scale(coefficient);
    result.grad_norm = Deferred(norm);
  }
  if (config_.log_num_zeros_in_grad) {
    const TimedSection timed(*this, "optimizer-count-zeros");
    result.num_zeros_in_grad = Deferred(count_zeros());
  }
  const TimedSection timed(*this, "optimizer-inner-step");
  result.update_successful = step_with_ready_grads();
  return result;
}

void Optimizer::prepare_queued_steps(const QueuedStepSources& sources) {
  inside_->prepare_queued_steps(sources);
}

QueuedStep Optimizer::queue_step() { return inside_->queue_step(); }

void Optimizer::note_queued_step(bool skipped) { update_loss_scale(skipped); }

void Optimizer::end_queued_steps() { inside_->end_queued_steps(); }

at::Tensor Optimizer::group_rates() {
  const std::vector<OptimizerGroup*> groups = param_groups();
  const at::Tensor rates = at::empty({static_cast<int64_t>(groups.size()), 2}, at::kDouble);
  auto* next = rates.mutable_data_ptr<double>();
  for (const OptimizerGroup* const group : groups) {
    *next++ = group->lr;
    *next++ = group->weight_decay;
  }
  return rates;
}

std::vector<std::vector<OptimizerGroup>> make_optimizer_groups(std::vector<Param> params,
                                                               const OptimizerConfig& config,
                                                               const GroupingOptions& options) {
  std::vector<ParamInfo> infos;
  for (const Param& param : params) infos.push_back(param.info);
  std::vector<std::vector<OptimizerGroup>> chain;
  uint32_t id = 0;
  for (ParamGroup& group :
       get_param_groups(infos, config, options.overrides, options.keys_of_all_ranks)) {
    if (chain.size() <= group.optimizer_index) chain.resize(group.optimizer_index + 1);
    OptimizerGroup made;
    made.lr = group.max_lr.value_or(config.lr.value_or(0));
    made.weight_decay = config.weight_decay * group.wd_mult;
    made.rule_config = rule_of_group(group, config, options.qkv_split, options.era);
    if (auto* const adam = made.rule_config.get_if<AdamRule>()) {
      adam->arithmetic = options.adam_arithmetic;
    }
    if (auto* const muon = made.rule_config.get_if<MuonRule>()) {
      muon->newton_schulz.iteration = options.newton_schulz_iteration;
    }
    if (auto* const adaptive = made.rule_config.get_if<AdaptiveMuonRule>()) {
      adaptive->muon.newton_schulz.iteration = options.newton_schulz_iteration;
    }
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

double square_sum_for_norm(const OptimizedParam& param) {
  if (!param.grad.defined()) return 0;
  const double sum = sum_of_squares(param.grad);
  return counts(param) || !std::isfinite(sum) ? sum : 0;
}

int64_t zeros_in_grad(const OptimizedParam& param, double grad_scale) {
  return counts(param) ? count_zeros(param.grad, static_cast<float>(grad_scale)) : 0;
}

double norm_of(std::span<const double> square_sums) {
  double total = 0;
  for (const double sum : square_sums) total += sum;
  return std::sqrt(total);
}

double clip_coefficient(double max_norm, double total_norm) {
  return max_norm / (total_norm + kClipEpsilon);
}

}  // namespace optim
