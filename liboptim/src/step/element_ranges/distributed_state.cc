// The state of a DistributedOptimizer as that of whole parameters, and back.
#include <ATen/core/grad_mode.h>

#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <optim/sharded_state.h>
#include <optim/update_rule.h>

#include "rules/refuse_key.h"
#include "step/element_ranges/range_sharding.h"
#include "step/precision/optimizer_state.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

constexpr const char* kMasters = "fp32_from_fp16_params";
constexpr const char* kScaler = "grad_scaler";

OptimizerConfig with_fp32_states(OptimizerConfig config) {
  config.use_precision_aware_optimizer = false;
  config.main_grads_dtype = config.main_params_dtype = ckpt::DType::Float32;
  config.exp_avg_dtype = config.exp_avg_sq_dtype = ckpt::DType::Float32;
  return config;
}

// A whole tensor out of the ranges of all processes. Collective.
at::Tensor gathered(RangeSharding& sharding, uint32_t id, const at::Tensor& own) {
  SharingGroup& group = sharding.group_of(id);
  const at::Tensor whole = at::zeros(sharding.params[id].param.sizes(), at::kFloat);
  std::vector<SharedParam> shared;
  for (const ElementPiece& piece : group.pieces_of(id)) {
    shared.push_back({piece.of(whole), id, piece.owner});
    if (piece.owner == group.collectives.rank()) shared.back().param.copy_(own);
  }
  make_copying_gather(shared, sharding.options.gather_bucket_bytes, group.collectives)->run();
  return whole;
}

// What the processes know of each parameter: its updates, and whether it has states. Collective.
struct Progress {
  std::vector<int64_t> steps, has_state;  // by id
};
Progress progress_of(RangeSharding& sharding, const std::vector<OptimizedParam*>& own) {
  const auto count = static_cast<int64_t>(sharding.params.size());
  Progress progress = {std::vector<int64_t>(sharding.params.size()),
                       std::vector<int64_t>(sharding.params.size())};
  for (SharingGroup* const group : sharding.groups()) {
    if (group->ids.empty()) continue;
    at::Tensor largest = at::zeros({2, count}, at::kLong);
    auto* const steps = largest.mutable_data_ptr<int64_t>();
    for (const OptimizedParam* const param : own) {
      if (&sharding.group_of(param->id) != group) continue;
      steps[param->id] = param->step;
      steps[count + param->id] = param->state.empty() && param->packed_state.empty() ? 0 : 1;
    }
    group->collectives.all_reduce_max(largest);
    for (const uint32_t id : group->ids) {
      progress.steps[id] = steps[id];
      progress.has_state[id] = steps[count + id];
    }
  }
  return progress;
}

// The state of whole parameters cut to this process's ranges, in the order of its groups.
class Cut {
 public:
  Cut(RangeSharding& sharding, GroupOptimizer& whole) : sharding_(sharding), whole_(whole) {}

  StateValue operator()(const StateValue& state) {
    const StateDict& dict = as_dict(state, "state_dict");
    const StateValue* const masters = find(dict, kMasters);
    if (masters == nullptr) return inner(dict);
    StateDict cut;
    put(cut, "optimizer", inner(as_dict(at(dict, "optimizer", "state_dict"), "optimizer")));
    if (const StateValue* const scaler = find(dict, kScaler)) put(cut, kScaler, *scaler);
    put(cut, kMasters, of_masters(as_list(*masters, kMasters)));
    return cut;
  }

 private:
  StateValue range_of(const StateValue& value, const ElementPiece& piece) const {
    return handle_of(piece.of(tensor(value, "state")).contiguous());
  }

  StateDict inner(const StateDict& dict) {
    const StateDict& state = as_dict(at(dict, "state", "optimizer"), "state");
    const StateList& saved = as_list(at(dict, "param_groups", "optimizer"), "param_groups");
    StateDict cut_state;
    StateList cut_groups;
    int64_t index = 0, own = 0;
    const std::vector<OptimizerGroup*> groups = whole_.param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      StateList params;
      for (const OptimizedParam& param : groups[g]->params) {
        const StateValue* const of_param = find(state, index++);
        const ElementPiece* const piece = sharding_.own_piece(param.id);
        if (piece == nullptr) continue;
        if (of_param != nullptr) put(cut_state, own, of_range(*of_param, *piece));
        params.push_back(own++);
      }
      StateDict fields = as_dict(saved[g], "param_groups");
      put(fields, "params", std::move(params));
      cut_groups.push_back(std::move(fields));
    }
    StateDict cut;
    put(cut, "state", std::move(cut_state));
    put(cut, "param_groups", std::move(cut_groups));
    return cut;
  }

  StateDict of_range(const StateValue& of_param, const ElementPiece& piece) const {
    StateDict cut;
    for (const auto& [key, value] : as_dict(of_param, "state")) {
      const bool is_step = key == StateKey("step");
      put(cut, key, is_step ? value : range_of(value, piece));
    }
    return cut;
  }

  StateList of_masters(const StateList& masters) const {
    StateList cut;
    const std::vector<OptimizerGroup*> groups = whole_.param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      const StateList& of_group = as_list(masters[g], kMasters);
      StateList ranges;
      size_t next = 0;
      for (const OptimizedParam& param : groups[g]->params) {
        if (!has_master(param)) continue;
        const StateValue& master = of_group[next++];
        const ElementPiece* const piece = sharding_.own_piece(param.id);
        if (piece != nullptr) ranges.push_back(range_of(master, *piece));
      }
      cut.push_back(std::move(ranges));
    }
    return cut;
  }

  RangeSharding& sharding_;
  GroupOptimizer& whole_;
};

StateValue one_or_list(StateList entries) {
  return entries.size() == 1 ? std::move(entries.front()) : StateValue(std::move(entries));
}

StateValue value_of(ShardedParam sharded) {
  return std::visit([](auto& content) { return StateValue(std::move(content)); }, sharded);
}

// The updates that all parameters of an optimizer share; none where its rules count none.
std::optional<int64_t> common_step(GroupOptimizer& whole) {
  std::optional<int64_t> step;
  for (const OptimizerGroup* const group : whole.param_groups()) {
    if (step_count_of(group->rule_config) == StepCount::None) continue;
    for (const OptimizedParam& param : group->params) {
      if (param.state.empty()) continue;
      if (step && *step != param.step) {
        refuse_key(param.model.info.name, "has a different step from the parameters before it");
      }
      step = param.step;
    }
  }
  return step;
}

StateDict groups_of(GroupOptimizer& whole) {
  const std::optional<int64_t> step = common_step(whole);
  StateList groups;
  for (const OptimizerGroup* const group : whole.param_groups()) {
    StateDict fields = group_fields(*group);
    if (step) put(fields, "step", *step);
    groups.push_back(std::move(fields));
  }
  StateDict optimizer;
  put(optimizer, "param_groups", std::move(groups));
  return optimizer;
}

// In the order of the groups, each parameter's fp32 value and states as the model's tensor is.
StateDict param_state(GroupOptimizer& whole, const std::map<int64_t, ShardedParam>& sharded) {
  StateDict all;
  int64_t index = 0;
  for (const OptimizedParam* const param : whole.get_parameters()) {
    const ShardedParam& model = sharded.at(index);
    StateDict states;
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
      put(states, name,
          value_of(
              make_sharded_optimizer_tensor(model, handle_of(tensor), "optimizer.state." + name)));
    };
    add("param", param->main_param);
    for (const auto& [name, tensor] : param->state) add(name, tensor);
    put(all, index++, std::move(states));
  }
  return all;
}

StateDict sharded_of(GroupOptimizer& whole, const StateDict& model_sharded_state_dict) {
  std::vector<TensorHandle> params;
  for (const OptimizedParam* const param : whole.get_parameters()) {
    params.push_back(handle_of(param->model.param));
  }
  const IdToShardedParamMap sharded =
      get_param_id_to_sharded_param_map(model_sharded_state_dict, params);
  for (const OptimizedParam* const param : whole.get_parameters()) {
    const auto index = static_cast<int64_t>(param->id - whole.get_parameters().front()->id);
    if (sharded.params.contains(index)) continue;
    refuse_key(param->model.info.name,
               "is not in the model's sharded state dict." + std::string(KEEP_VARS_HINT));
  }
  StateDict dict;
  put(dict, "optimizer", groups_of(whole));
  put(dict, "param_state", param_state(whole, sharded.params));
  put(dict, "param_state_sharding_type", std::string("fully_reshardable"));
  return dict;
}

}  // namespace

// Whole parameters with states of their own, fp32 whatever the configuration's; the model's tensors
// are the caller's.
std::vector<std::unique_ptr<GroupOptimizer>> DistributedOptimizer::whole_optimizers() {
  const OptimizerConfig plain = with_fp32_states(config());
  std::vector<std::unique_ptr<GroupOptimizer>> wholes;
  uint32_t id = 0;
  size_t group_number = 0;
  for (const auto& optimizer : chained_optimizers_) {
    std::vector<OptimizerGroup> groups;
    for (const OptimizerGroup* const group : optimizer->param_groups()) {
      OptimizerGroup whole = *group;
      whole.params.clear();
      for (uint32_t i = 0; i < sharding_->group_sizes[group_number]; ++i) {
        whole.params.emplace_back();
        whole.params.back().id = id;
        whole.params.back().model = sharding_->params[id++];
      }
      groups.push_back(std::move(whole));
      ++group_number;
    }
    wholes.push_back(make_group_optimizer(std::move(groups), plain));
  }
  return wholes;
}

std::vector<std::unique_ptr<GroupOptimizer>> DistributedOptimizer::gather_states() {
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<GroupOptimizer>> wholes = whole_optimizers();
  const std::vector<OptimizedParam*> own = get_parameters();
  const Progress progress = progress_of(*sharding_, own);
  std::vector<const OptimizedParam*> own_by_id(sharding_->params.size(), nullptr);
  for (const OptimizedParam* const param : own) own_by_id[param->id] = param;
  for (const auto& whole : wholes) {
    for (OptimizerGroup* const group : whole->param_groups()) {
      for (OptimizedParam& param : group->params) {
        const OptimizedParam* const range = own_by_id[param.id];
        param.step = progress.steps[param.id];
        if (has_master(param)) {
          const at::Tensor master = range != nullptr ? master_of(*range) : at::Tensor();
          whole->set_master(param, gathered(*sharding_, param.id, master));
        }
        if (progress.has_state[param.id] == 0) continue;
        const ParamState states = range != nullptr ? state_of(*range) : ParamState();
        for (const std::string_view name : group->rule->state_names()) {
          const std::string key(name);
          const at::Tensor state = range != nullptr ? states.at(key) : at::Tensor();
          whole->set_state(param, key, gathered(*sharding_, param.id, state));
        }
      }
    }
  }
  return wholes;
}

StateValue DistributedOptimizer::state_dict() {
  StateList entries;
  const auto wholes = gather_states();
  for (size_t i = 0; i < wholes.size(); ++i) {
    StateValue entry = wholes[i]->state_dict();
    const StateValue own = chained_optimizers_[i]->state_dict();
    const StateValue* const scaler = find(as_dict(own, "state_dict"), kScaler);
    if (scaler != nullptr) put(*entry.get_if<StateDict>(), kScaler, *scaler);
    entries.push_back(std::move(entry));
  }
  return one_or_list(std::move(entries));
}

std::function<void()> DistributedOptimizer::prepare_load(const StateValue& state_dict) {
  std::vector<std::unique_ptr<GroupOptimizer>> wholes = whole_optimizers();
  std::vector<GroupOptimizer*> handles;
  std::vector<std::unique_ptr<Optimizer>> chain;
  for (auto& whole : wholes) {
    handles.push_back(whole.get());
    chain.push_back(std::move(whole));
  }
  ChainedOptimizer loaded(std::move(chain), with_fp32_states(config()));
  loaded.load_state_dict(state_dict);
  StateList cuts;
  for (GroupOptimizer* const whole : handles) {
    cuts.push_back(Cut(*sharding_, *whole)(whole->state_dict()));
  }
  return ChainedOptimizer::prepare_load(one_or_list(std::move(cuts)));
}

StateValue DistributedOptimizer::sharded_state_dict(const StateDict& model_sharded_state_dict,
                                                    bool is_loading) {
  if (is_loading) {
    refuse_key("is_loading",
               "ranges are not loaded from sharded tensors; load_state_dict() takes whole "
               "parameters",
               ckpt::ErrorCode::Unsupported);
  }
  StateList entries;
  const auto wholes = gather_states();
  for (size_t i = 0; i < wholes.size(); ++i) {
    StateDict entry = sharded_of(*wholes[i], model_sharded_state_dict);
    const StateValue own = chained_optimizers_[i]->state_dict();
    const StateValue* const scaler = find(as_dict(own, "state_dict"), "grad_scaler");
    if (scaler != nullptr) put(entry, "grad_scaler", *scaler);
    entries.push_back(std::move(entry));
  }
  if (entries.size() == 1) return std::move(entries.front());
  StateDict all;
  for (size_t i = 0; i < entries.size(); ++i) {
    put(all, static_cast<int64_t>(i), std::move(entries[i]));
  }
  return all;
}

}  // namespace optim
