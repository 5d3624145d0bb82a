// The sharded state dict of a DistributedOptimizer. Source: sharded_param_state_fully_reshardable
// and state_dict of megatron/core/optimizer/distrib_optimizer.py (April 2026).
#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <optim/sharded_state.h>
#include <optional>
#include <utility>

#include "step/element_ranges/range_sharding.h"
#include "step/precision/optimizer_state.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

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
        refuse_state(param.model.info.name, "has a different step from the parameters before it");
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
    refuse_state(param->model.info.name,
                 "is not in the model's sharded state dict." + std::string(KEEP_VARS_HINT));
  }
  StateDict dict;
  put(dict, "optimizer", groups_of(whole));
  put(dict, "param_state", param_state(whole, sharded.params));
  put(dict, "param_state_sharding_type", std::string("fully_reshardable"));
  return dict;
}

}  // namespace

StateValue DistributedOptimizer::sharded_state_dict(const StateDict& model_sharded_state_dict,
                                                    bool is_loading) {
  if (is_loading) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "is_loading"},
                      "ranges are not loaded from sharded tensors; load_state_dict() takes whole "
                      "parameters");
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
