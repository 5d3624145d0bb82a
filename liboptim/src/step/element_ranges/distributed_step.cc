// What a DistributedOptimizer does with other processes in a step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <algorithm>
#include <cmath>

#include "step/element_ranges/range_sharding.h"
#include "step/optimizer/peers_and_device.h"
#include "step/optimizer/update_params.h"

namespace optim {
namespace {

// Of what counts in the norm, as square_sum_for_norm() has it.
double counted(const RangeSharding& sharding, uint32_t id, double sum, bool is_duplicate) {
  const bool counts = !sharding.params[id].info.attributes.shared && !is_duplicate;
  return counts || !std::isfinite(sum) ? sum : 0;
}

// Over all processes, by id; where several hold different parameters under one id, in the order of
// ranks: of those that share parameters the first tells.
double norm_over_world(RangeSharding& sharding, const std::vector<double>& by_id) {
  Collectives& stats = sharding.stats;
  const int64_t count = max_of(static_cast<int64_t>(by_id.size()), stats);
  at::Tensor mine = at::zeros({count}, at::kDouble);
  auto* const cells = mine.mutable_data_ptr<double>();
  for (uint32_t id = 0; id < by_id.size(); ++id) {
    if (sharding.group_of(id).collectives.rank() == 0) cells[id] = by_id[id];
  }
  at::Tensor all = at::empty({stats.size() * count}, at::kDouble);
  stats.all_gather(all, mine);
  const auto* const values = all.const_data_ptr<double>();
  std::vector<double> sums;
  for (int64_t id = 0; id < count; ++id) {
    for (int64_t rank = 0; rank < stats.size(); ++rank) sums.push_back(values[rank * count + id]);
  }
  return norm_of(sums);
}

bool is_one_model(RangeSharding& sharding) {
  const int processes = sharding.stats.size();
  const bool shares_experts =
      sharding.experts.ids.empty() || sharding.experts.collectives.size() == processes;
  return sharding.dense.collectives.size() == processes && shares_experts;
}

std::vector<OptimizedParam*> with_grad(const std::vector<OptimizedParam*>& params,
                                       RangeSharding& sharding, const SharingGroup& group) {
  std::vector<OptimizedParam*> found;
  for (OptimizedParam* const param : params) {
    if (param->grad.defined() && &sharding.group_of(param->id) == &group) found.push_back(param);
  }
  return found;
}

}  // namespace

double DistributedOptimizer::get_grad_norm() {
  RangeSharding& sharding = *sharding_;
  const std::vector<OptimizedParam*> own = get_parameters();
  sharding.grad_count = sum_of(own_grad_count(*this), sharding.stats);
  std::vector<double> by_id(sharding.params.size(), 0);
  for (SharingGroup* const group : sharding.groups()) {
    const std::vector<double> sums =
        square_sums(sharding, *group, with_grad(own, sharding, *group));
    for (const uint32_t id : group->ids) {
      by_id[id] = counted(sharding, id, sums[id], sharding.is_duplicate[id]);
    }
  }
  return is_one_model(sharding) ? norm_of(by_id) : norm_over_world(sharding, by_id);
}

int64_t DistributedOptimizer::count_zeros() {
  return sum_of(Optimizer::count_zeros(), sharding_->stats);
}

void DistributedOptimizer::bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  for (OptimizedParam* const param : get_parameters()) {
    const Param& whole = sharding_->params[param->id];
    const at::Tensor grad = grad_of ? grad_of(whole.info) : whole.main_grad;
    param->model.main_grad = at::Tensor();
    if (!grad.defined()) continue;
    if (grad.sizes() != whole.param.sizes() || !grad.is_contiguous()) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = whole.info.name},
                        "expected a contiguous gradient of the parameter's shape");
    }
    param->model.main_grad =
        grad.detach().view({-1}).narrow(0, param->first_element, param->model.param.numel());
  }
}

std::vector<std::unique_ptr<ParamGather>> DistributedOptimizer::make_gathers() {
  RangeSharding& sharding = *sharding_;
  const auto& is_in_first = sharding.options.is_in_first_model_chunk;
  const bool has_chunks = config().overlap_param_gather_with_optimizer_step && is_in_first;
  std::vector<std::unique_ptr<ParamGather>> gathers;
  for (const bool is_first : {true, false}) {
    if (!is_first && !has_chunks) break;
    for (SharingGroup* const group : sharding.groups()) {
      std::vector<SharedParam> shared;
      for (const ElementPiece& piece : group->pieces) {
        const Param& param = sharding.params[piece.id];
        if (has_chunks && is_in_first(param.info) != is_first) continue;
        shared.push_back({piece.of(param.param), piece.id, piece.owner});
      }
      gathers.push_back(
          make_copying_gather(shared, sharding.options.gather_bucket_bytes, group->collectives));
    }
  }
  return gathers;
}

bool DistributedOptimizer::step_with_ready_grads() {
  const std::optional<std::string> partial = partial_grad(*sharding_, get_parameters());
  if (StepInside::of(*this).peers->any(partial.has_value())) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = partial.value_or("")},
                      "some processes have a gradient of the parameter, others have none");
  }
  if (!config().overlap_param_gather) return ChainedOptimizer::step_with_ready_grads();
  update_and_gather(*this, make_gathers(), grad_scale_);
  return true;
}

StepResult DistributedOptimizer::step() {
  const StepResult result = ChainedOptimizer::step();
  if (result.update_successful && !config().overlap_param_gather) allgather_params();
  return result;
}

void DistributedOptimizer::allgather_params() {
  const TimedSection timed(*this, "params-all-gather");
  const at::NoGradGuard no_grad;
  for (const std::unique_ptr<ParamGather>& gather : make_gathers()) gather->run();
}

}  // namespace optim
