#include <optim/layer_wise_optimizer.h>

#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <array>
#include <string>
#include <utility>

#include "step/collectives.h"
#include "step/gather_params.h"
#include "step/grad_stats.h"
#include "step/layer_wise_state.h"
#include "step/state_file.h"

namespace optim {

struct LayerWiseDistributedOptimizer::Sharding {
  Collectives collectives;
  uint32_t layout_ranks = 1;
  Ownership ownership = {};
  std::vector<Param> params = {};       // by id
  std::vector<int> owner_process = {};  // by id
};

namespace {

void refuse(const std::string& key, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key}, problem);
}

void check_groups(const ProcessGroupCollection& groups) {
  const std::array<std::pair<const char*, const ProcessGroupPtr*>, 4> single = {
      {{"mp", &groups.mp},
       {"tp", &groups.tp},
       {"expt_tp", &groups.expt_tp},
       {"tp_ep_pp", &groups.tp_ep_pp}}};
  for (const auto& [name, group] : single) {
    if (rank_in(*group).size > 1) refuse(name, "only data parallel groups may have many processes");
  }
  if (groups.world && rank_in(groups.world).size != rank_in(groups.dp_cp).size) {
    refuse("world", "has other processes than the data parallel group");
  }
}

std::vector<OptimizerGroup> released_groups(Optimizer& optimizer) {
  auto* const unwrapped = dynamic_cast<FP32Optimizer*>(&optimizer);
  if (unwrapped == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "a layer-wise optimizer is made of FP32Optimizers, it wraps them itself");
  }
  return unwrapped->release_groups();
}

// The groups of all optimizers as shard_params() deals them.
std::vector<ParamGroup> dealt_groups(
    const std::vector<std::vector<OptimizerGroup>>& groups_by_optimizer) {
  std::vector<ParamGroup> all;
  for (const auto& groups : groups_by_optimizer) {
    for (const OptimizerGroup& group : groups) {
      ParamGroup dealt = group.settings;
      for (const OptimizedParam& param : group.params) {
        dealt.params.push_back({dealt.params.size(), param.model.info});
      }
      all.push_back(std::move(dealt));
    }
  }
  return all;
}

// Leaves each group what `rank` keeps of it, after what it kept for the ranks before.
void keep_share(std::vector<OptimizerGroup*>& local, const std::vector<OptimizedParam>& all,
                const std::vector<std::vector<uint32_t>>& ids_by_group) {
  for (size_t group = 0; group < local.size(); ++group) {
    for (const uint32_t id : ids_by_group[group]) local[group]->params.push_back(all[id]);
  }
}

}  // namespace

LayerWiseDistributedOptimizer::LayerWiseDistributedOptimizer(
    std::vector<std::unique_ptr<Optimizer>> optimizers, OptimizerConfig config,
    ProcessGroupCollection groups, LayerWiseOptions options)
    : ChainedOptimizer({}, std::move(config)) {
  check_groups(groups);
  sharding_ = std::make_unique<Sharding>(Sharding{.collectives = Collectives(groups.dp_cp)});
  const auto processes = static_cast<uint32_t>(sharding_->collectives.size());
  sharding_->layout_ranks = options.layout_ranks.value_or(processes);
  chained_optimizers_ = shard_params(std::move(optimizers), options);
}

LayerWiseDistributedOptimizer::~LayerWiseDistributedOptimizer() = default;

std::vector<std::unique_ptr<Optimizer>> LayerWiseDistributedOptimizer::shard_params(
    std::vector<std::unique_ptr<Optimizer>> optimizers, const LayerWiseOptions& options) {
  std::vector<std::vector<OptimizerGroup>> groups_by_optimizer;
  for (const auto& optimizer : optimizers) {
    groups_by_optimizer.push_back(released_groups(*optimizer));
  }
  Sharding& sharding = *sharding_;
  sharding.ownership =
      optim::shard_params(dealt_groups(groups_by_optimizer),
                          {.data_parallel = sharding.layout_ranks}, options.ownership);
  std::vector<OptimizedParam> all;  // by id
  std::vector<OptimizerGroup*> local;
  for (auto& groups : groups_by_optimizer) {
    for (OptimizerGroup& group : groups) {
      for (OptimizedParam& param : std::exchange(group.params, {})) {
        param.id = static_cast<uint32_t>(all.size());
        sharding.params.push_back(param.model);
        all.push_back(std::move(param));
      }
      local.push_back(&group);
    }
  }
  const auto processes = static_cast<uint32_t>(sharding.collectives.size());
  for (const uint32_t owner : sharding.ownership.owner) {
    sharding.owner_process.push_back(static_cast<int>(owner % processes));
  }
  const auto first = static_cast<uint32_t>(sharding.collectives.rank());
  for (uint32_t rank = first; rank < sharding.layout_ranks; rank += processes) {
    keep_share(local, all, sharding.ownership.groups_on({rank, rank}));
  }
  std::vector<std::unique_ptr<Optimizer>> wrapped;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    std::unique_ptr<GroupOptimizer> made;
    if (config().bf16) {
      made = std::make_unique<Float16OptimizerWithFloat16Params>(std::move(groups_by_optimizer[i]),
                                                                 optimizers[i]->config());
    } else {
      made = std::make_unique<FP32Optimizer>(std::move(groups_by_optimizer[i]),
                                             optimizers[i]->config());
    }
    if (!options.init_state_fns.empty()) options.init_state_fns.at(i)(*made, made->config());
    wrapped.push_back(std::move(made));
  }
  return wrapped;
}

const Ownership& LayerWiseDistributedOptimizer::ownership() const { return sharding_->ownership; }

const std::vector<Param>& LayerWiseDistributedOptimizer::all_params() const {
  return sharding_->params;
}

double LayerWiseDistributedOptimizer::get_grad_norm() {
  const auto count = static_cast<int64_t>(sharding_->params.size());
  at::Tensor sums = at::zeros({count}, at::kDouble);
  auto* const values = sums.mutable_data_ptr<double>();
  for (const OptimizedParam* const param : get_parameters()) {
    values[param->id] = square_sum_for_norm(*param);
  }
  sharding_->collectives.all_reduce_sum(sums);  // each has one addend that is not 0: exact
  return norm_of({values, static_cast<size_t>(count)});
}

int64_t LayerWiseDistributedOptimizer::count_zeros() {
  at::Tensor zeros = at::zeros({1}, at::kLong);
  *zeros.mutable_data_ptr<int64_t>() = Optimizer::count_zeros();
  sharding_->collectives.all_reduce_sum(zeros);
  return *zeros.const_data_ptr<int64_t>();
}

StepResult LayerWiseDistributedOptimizer::step() {
  const StepResult result = ChainedOptimizer::step();
  if (result.update_successful) allgather_params();
  return result;
}

void LayerWiseDistributedOptimizer::allgather_params() {
  gather_params(sharding_->params, sharding_->owner_process, sharding_->collectives);
}

void LayerWiseDistributedOptimizer::broadcast_params() {
  optim::broadcast_params(sharding_->params, sharding_->owner_process, sharding_->collectives);
}

StateValue LayerWiseDistributedOptimizer::sharded_state_dict(
    const StateDict& model_sharded_state_dict, bool is_loading) {
  StateValue state = ChainedOptimizer::sharded_state_dict(model_sharded_state_dict, is_loading);
  if (chained_optimizers_.size() == 1) {
    finish_layer_wise_state(state, sharding_->collectives);
  } else {
    for (auto& [index, entry] : *state.get_if<StateDict>()) {
      finish_layer_wise_state(entry, sharding_->collectives);
    }
  }
  return state;
}

void LayerWiseDistributedOptimizer::save_state_dict_to_file(const std::filesystem::path& file) {
  write_state_file(file, ChainedOptimizer::state_dict());
}

void LayerWiseDistributedOptimizer::load_state_dict_from_file(const std::filesystem::path& file) {
  load_state_dict(read_state_file(file));
}

}  // namespace optim
