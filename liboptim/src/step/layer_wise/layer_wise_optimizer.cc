#include <optim/layer_wise_optimizer.h>

#include <ATen/ops/zeros.h>

#include <fstream>
#include <string>
#include <utility>

#include <optim/state_dict.h>
#include <optim/update_rule.h>

#include "rules/refuse_key.h"
#include "step/communication/collectives.h"
#include "step/layer_wise/layer_wise_sharding.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

// (PP, TP, DP) -> (PP, TP, 0); a number -> 0.
void make_main_replica(ReplicaId& id) {
  if (auto* const parts = std::get_if<Shape>(&id)) {
    if (!parts->empty()) parts->back() = 0;
  } else {
    id = int64_t{0};
  }
}

// Every sharded leaf below `root`.
void make_main_replicas(StateValue& root) {
  std::vector<StateValue*> open = {&root};
  while (!open.empty()) {
    StateValue& value = *open.back();
    open.pop_back();
    if (auto* const list = value.get_if<StateList>()) {
      for (StateValue& entry : *list) open.push_back(&entry);
    } else if (auto* const dict = value.get_if<StateDict>()) {
      for (auto& [key, entry] : *dict) open.push_back(&entry);
    } else if (auto* const sharded = value.get_if<ShardedTensor>()) {
      make_main_replica(sharded->replica_id);
    } else if (auto* const factory = value.get_if<ShardedTensorFactory>()) {
      make_main_replica(factory->replica_id);
    } else if (auto* const object = value.get_if<ShardedObject>()) {
      make_main_replica(object->replica_id);
    }
  }
}

StateValue local(StateValue value) {
  return LocalNonpersistentObject{std::make_shared<const StateValue>(std::move(value))};
}

void finish_masters(StateDict& state) {
  StateValue* const masters = find(state, "fp32_from_fp16_params");
  if (masters == nullptr) return;
  StateDict by_group;
  int64_t index = 0;
  for (StateValue& group : *masters->get_if<StateList>()) {
    const bool is_empty = group.get_if<StateList>()->empty();
    put(by_group, index++, is_empty ? local(std::move(group)) : std::move(group));
  }
  *masters = std::move(by_group);
}

// Gives each group the `step` that the first process with one has, where there is one.
void finish_groups(StateList& groups, Collectives& collectives) {
  const auto group_count = static_cast<int64_t>(groups.size());
  at::Tensor table = at::zeros({collectives.size(), group_count}, at::kLong);
  auto* const cells = table.mutable_data_ptr<int64_t>();  // step + 1, or 0
  for (int64_t g = 0; g < group_count; ++g) {
    const StateDict& fields = as_dict(groups[static_cast<size_t>(g)], "param_groups");
    const StateValue* const step = find(fields, "step");
    if (step != nullptr) {
      cells[collectives.rank() * group_count + g] = static_cast<int64_t>(number(*step, "step")) + 1;
    }
  }
  collectives.all_reduce_sum(table);
  for (int64_t rank = collectives.size() - 1; rank >= 0; --rank) {
    for (int64_t g = 0; g < group_count; ++g) {
      const int64_t cell = cells[rank * group_count + g];
      StateDict& fields = *groups[static_cast<size_t>(g)].get_if<StateDict>();
      if (cell > 0) put(fields, "step", cell - 1);
    }
  }
}

// Makes the sharded state dict of one process one of all processes, as the reference's layer-wise
// optimizer does: owners are the main replicas; masters become a dict by group; what is empty here
// is not saved from here; a group without parameters here takes its `step` from the first process
// that has some. Collective.
void finish_layer_wise_state(StateValue& state, Collectives& collectives) {
  make_main_replicas(state);
  StateDict& dict = *state.get_if<StateDict>();
  finish_masters(dict);
  StateValue* const wrapped = find(dict, "optimizer");
  StateDict& inner = wrapped != nullptr ? *wrapped->get_if<StateDict>() : dict;
  StateValue& of_params = *find(inner, "state");
  if (of_params.get_if<StateDict>()->empty()) of_params = local(std::move(of_params));
  finish_groups(*find(inner, "param_groups")->get_if<StateList>(), collectives);
}
std::vector<OptimizerGroup> released_groups(Optimizer& optimizer) {
  auto* const unwrapped = dynamic_cast<FP32Optimizer*>(&optimizer);
  if (unwrapped == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "expected FP32Optimizers; a layer-wise optimizer wraps them itself");
  }
  return unwrapped->release_groups();
}

// The groups of all optimizers as shard_params() deals them.
std::vector<ParamGroup> dealt_groups(const std::vector<OptimizerGroup*>& groups,
                                     const MatrixSplits& splits) {
  std::vector<ParamGroup> all;
  for (const OptimizerGroup* const group : groups) {
    ParamGroup dealt = group->settings;
    for (const OptimizedParam& param : group->params) {
      dealt.params.push_back({dealt.params.size(), param.model.info});
      dealt.params.back().info.shape = splits.dealt_shape(param.model.info);
    }
    all.push_back(std::move(dealt));
  }
  return all;
}

}  // namespace

LayerWiseDistributedOptimizer::LayerWiseDistributedOptimizer(
    std::vector<std::unique_ptr<Optimizer>> optimizers, OptimizerConfig config,
    ProcessGroupCollection groups, LayerWiseOptions options)
    : ChainedOptimizer({}, std::move(config)) {
  this->config().validate();
  if (this->config().use_distributed_optimizer) {
    refuse_key("use_distributed_optimizer",
               "whole parameters are dealt out here; DistributedOptimizer updates ranges",
               ckpt::ErrorCode::Unsupported);
  }
  check_groups(groups, options);
  sharding_ = std::make_unique<LayerWiseSharding>(
      LayerWiseSharding{.dense = Collectives(groups.dp_cp),
                        .experts = Collectives(groups.expt_dp),
                        .stats = Collectives(groups.world ? groups.world : groups.dp_cp),
                        .options = std::move(options),
                        .groups = groups});
  LayerWiseSharding& sharding = *sharding_;
  StepInside::of(*this).peers = make_peers(*this, sharding);
  sharding.experts.share_failures_with(sharding.dense);
  sharding.stats.share_failures_with(sharding.dense);
  const int processes = sharding.dense.size();
  sharding.layout_ranks = sharding.options.layout_ranks.value_or(static_cast<uint32_t>(processes));
  chained_optimizers_ = shard_params(std::move(optimizers));
  for (OptimizedParam* const param : get_parameters()) {
    param->is_duplicate = is_duplicate(param->model.info, groups);
  }
  sharding.splits->check_owners(get_parameters());
  check_same_model(
      {sharding.params, sharding.ownership, this->config(), sharding.options, param_groups()},
      sharding.dense, sharding.experts);
  sharding.one_cell_per_param =
      sharding.stats.size() == processes &&
      (sharding.expert_params.empty() || sharding.experts.size() == processes);
  const auto count = static_cast<int64_t>(sharding.params.size());
  sharding.cell_count = sharding.one_cell_per_param ? count : max_of(count, sharding.stats);
}

LayerWiseDistributedOptimizer::~LayerWiseDistributedOptimizer() = default;

// Who updates what, by id; leaves each group this process's share.
void LayerWiseDistributedOptimizer::deal_out(
    std::vector<std::vector<OptimizerGroup>>& groups_by_optimizer) {
  LayerWiseSharding& sharding = *sharding_;
  const auto processes = static_cast<uint32_t>(sharding.dense.size());
  const auto expert_processes = static_cast<uint32_t>(sharding.experts.size());
  const bool experts_as_dense = expert_processes == processes;
  const uint32_t expert_ranks = experts_as_dense ? sharding.layout_ranks : expert_processes;
  std::vector<OptimizerGroup*> groups_of_all;
  for (auto& groups : groups_by_optimizer) {
    for (OptimizerGroup& group : groups) groups_of_all.push_back(&group);
  }
  sharding.splits.emplace(groups_of_all, config().muon_tp_mode, sharding.groups, sharding.dense);
  sharding.ownership =
      shard_params_over(dealt_groups(groups_of_all, *sharding.splits),
                        {sharding.layout_ranks, expert_ranks}, sharding.options.ownership);
  std::vector<OptimizedParam> all;  // by id
  for (OptimizerGroup* const group : groups_of_all) {
    for (OptimizedParam& param : std::exchange(group->params, {})) {
      const auto id = static_cast<uint32_t>(all.size());
      param.id = id;
      sharding.params.push_back(param.model);
      const bool is_expert = sharding.ownership.is_expert[id];
      const uint32_t modulus = is_expert ? expert_processes : processes;
      (is_expert ? sharding.expert_params : sharding.dense_params)
          .push_back(
              {param.model.param, id, static_cast<int>(sharding.ownership.owner[id] % modulus)});
      all.push_back(std::move(param));
    }
  }
  const auto first = static_cast<uint32_t>(sharding.dense.rank());
  const auto expert_rank = static_cast<uint32_t>(sharding.experts.rank());
  for (uint32_t rank = first; rank < sharding.layout_ranks; rank += processes) {
    const uint32_t as_expert = experts_as_dense ? rank : expert_rank;
    const auto kept = sharding.ownership.groups_on({rank, as_expert});  // ids by group
    for (size_t group = 0; group < kept.size(); ++group) {
      for (const uint32_t id : kept[group]) groups_of_all[group]->params.push_back(all[id]);
    }
  }
}

std::unique_ptr<GroupOptimizer> make_group_optimizer(std::vector<OptimizerGroup> groups,
                                                     const OptimizerConfig& config) {
  if (config.bf16 || config.fp16) {
    return std::make_unique<Float16OptimizerWithFloat16Params>(std::move(groups), config);
  }
  return std::make_unique<FP32Optimizer>(std::move(groups), config);
}

std::vector<std::unique_ptr<Optimizer>> LayerWiseDistributedOptimizer::shard_params(
    std::vector<std::unique_ptr<Optimizer>> optimizers) {
  std::vector<std::vector<OptimizerGroup>> groups_by_optimizer;
  for (const auto& optimizer : optimizers) {
    groups_by_optimizer.push_back(released_groups(*optimizer));
  }
  deal_out(groups_by_optimizer);
  const std::vector<InitStateFn>& init_state_fns = sharding_->options.init_state_fns;
  if (!init_state_fns.empty() && init_state_fns.size() != optimizers.size()) {
    refuse_key("init_state_fns", "has " + std::to_string(init_state_fns.size()) +
                                     " functions for " + std::to_string(optimizers.size()) +
                                     " optimizers");
  }
  std::vector<std::unique_ptr<Optimizer>> wrapped;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    std::unique_ptr<GroupOptimizer> made =
        make_group_optimizer(std::move(groups_by_optimizer[i]), optimizers[i]->config());
    if (!init_state_fns.empty()) init_state_fns[i](*made, made->config());
    wrapped.push_back(std::move(made));
  }
  return wrapped;
}

const Ownership& LayerWiseDistributedOptimizer::ownership() const { return sharding_->ownership; }

const std::vector<Param>& LayerWiseDistributedOptimizer::all_params() const {
  return sharding_->params;
}

StateValue LayerWiseDistributedOptimizer::sharded_state_dict(
    const StateDict& model_sharded_state_dict, bool is_loading) {
  StateValue state = ChainedOptimizer::sharded_state_dict(model_sharded_state_dict, is_loading);
  if (chained_optimizers_.size() == 1) {
    finish_layer_wise_state(state, sharding_->dense);
  } else {
    for (auto& [index, entry] : *state.get_if<StateDict>()) {
      finish_layer_wise_state(entry, sharding_->dense);
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

// What the reference calls logging the configuration: one file per process.
void write_config(const OptimizerConfig& config, const ProcessGroupCollection& groups) {
  if (config.config_logger_dir.empty()) return;
  const std::filesystem::path folder = config.config_logger_dir;
  const int rank = rank_in(groups.world ? groups.world : groups.dp_cp).rank;
  const std::filesystem::path file =
      folder / ("optimizer_config.rank_" + std::to_string(rank) + ".json");
  std::error_code ignored;  // what went wrong shows when the file is written
  std::filesystem::create_directories(folder, ignored);
  std::ofstream stream(file);
  stream << to_json(config) << '\n';
  if (stream.flush()) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = file.string()},
                    "the configuration cannot be written");
}

GroupingOptions grouping_options(const OptimizerConfig& config, std::span<const Param> params,
                                 const MegatronOptimizerOptions& options) {
  GroupingOptions grouping = {
      .overrides = options.overrides ? *options.overrides : get_standard_config_overrides(config),
      .qkv_split = options.qkv_split,
      .era = options.era,
      .adam_arithmetic = options.adam_arithmetic,
      .newton_schulz_iteration = options.newton_schulz_iteration};
  if (!options.groups.world) return grouping;
  std::vector<ParamInfo> infos;
  for (const Param& param : params) infos.push_back(param.info);
  grouping.keys_of_all_ranks =
      gather_group_keys(options.groups.world, get_group_keys(infos, config, grouping.overrides));
  return grouping;
}

std::unique_ptr<LayerWiseDistributedOptimizer> get_megatron_optimizer(
    const OptimizerConfig& config, std::vector<Param> params,
    const MegatronOptimizerOptions& options) {
  config.validate();
  write_config(config, options.groups);
  const GroupingOptions grouping = grouping_options(config, params, options);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::vector<OptimizerGroup>& groups :
       make_optimizer_groups(std::move(params), config, grouping)) {
    optimizers.push_back(
        std::make_unique<FP32Optimizer>(std::move(groups), config, /*wrapped_later=*/true));
  }
  return std::make_unique<LayerWiseDistributedOptimizer>(std::move(optimizers), config,
                                                         options.groups, options.layer_wise);
}

}  // namespace optim
