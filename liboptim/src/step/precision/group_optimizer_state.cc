// The state dicts of FP32Optimizer and Float16OptimizerWithFloat16Params.
#include <optim/mixed_precision.h>

#include <ATen/ops/full.h>

#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>
#include <optim/sharded_state.h>
#include <map>
#include <memory>
#include <utility>

#include "rules/refuse_key.h"
#include "step/optimizer/peers_and_device.h"
#include "step/precision/optimizer_state.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

constexpr const char* kMasters = "fp32_from_fp16_params";
constexpr const char* kScaler = "grad_scaler";

StateList masters_of(const OptimizerGroup& group) {
  StateList masters;
  for (const OptimizedParam& param : group.params) {
    if (has_master(param)) masters.push_back(handle_of(master_of(param)));
  }
  return masters;
}

// The step that all parameters share, as their rules count it; none where they count none per
// parameter.
StateValue common_step(const std::vector<OptimizerGroup>& groups) {
  std::optional<int64_t> step;
  StepCount count = StepCount::None;
  for (const OptimizerGroup& group : groups) {
    const StepCount own = step_count_of(group.rule_config);
    if (own != StepCount::Tensor && own != StepCount::Number) continue;
    count = own;
    for (const OptimizedParam& param : group.params) {
      if (param.state.empty() && param.packed_state.empty()) continue;
      if (step && *step != param.step) {
        refuse_key(param.model.info.name, "has a different step from the parameters before it");
      }
      step = param.step;
    }
  }
  if (!step) return {};
  if (count == StepCount::Number) return *step;
  return handle_of(at::full({}, static_cast<double>(*step), at::kFloat));
}

StateValue sharded_masters(const std::vector<OptimizerGroup>& groups,
                           const std::map<int64_t, ShardedParam>& sharded) {
  StateList by_group;
  int64_t index = 0;
  for (const OptimizerGroup& group : groups) {
    StateList masters;
    for (const OptimizedParam& param : group.params) {
      const int64_t id = index++;
      if (!has_master(param)) continue;
      const auto found = sharded.find(id);
      if (found == sharded.end()) {
        refuse_key(param.model.info.name,
                   "is not in the model's sharded state dict." + std::string(KEEP_VARS_HINT));
      }
      const ShardedParam master = make_sharded_optimizer_tensor(
          found->second, handle_of(master_of(param)), "optimizer.state.fp32_param");
      masters.push_back(std::visit([](const auto& s) { return StateValue(s); }, master));
    }
    by_group.push_back(std::move(masters));
  }
  return by_group;
}

// match[g]: which saved group is the g-th of ours.
void load_masters(GroupOptimizer& optimizer, const std::vector<size_t>& match,
                  const StateValue& saved, StateLoad& load) {
  const std::vector<OptimizerGroup*> groups = optimizer.param_groups();
  const StateList& by_group = as_list(saved, kMasters);
  if (by_group.size() != groups.size()) refuse_key(kMasters, "has a different number of groups");
  for (size_t g = 0; g < groups.size(); ++g) {
    const StateList& masters = as_list(by_group[match[g]], kMasters);
    size_t next = 0;
    for (OptimizedParam& param : groups[g]->params) {
      if (!has_master(param)) continue;
      if (next == masters.size()) refuse_key(kMasters, "has too few masters");
      const at::Tensor master = tensor(masters[next++], kMasters);
      if (master.sizes() != param.model.param.sizes()) {
        refuse_key(param.model.info.name, "has a different shape from its parameter");
      }
      load.assign([&optimizer, &param, master] { optimizer.set_master(param, master); });
    }
    if (next != masters.size()) refuse_key(kMasters, "has too many masters");
  }
}

// A scaler's state is neither dropped nor made up. A constant scaler's is empty.
void load_scaler(GradScaler* scaler, const StateValue* saved, StateLoad& load) {
  const StateDict state = saved != nullptr ? as_dict(*saved, kScaler) : StateDict();
  if (scaler == nullptr) {
    if (!state.empty()) refuse_key(kScaler, "has a state, although gradients are not scaled");
    return;
  }
  load.assign([scaler, state] { scaler->load_state_dict(state); });
  if (scaler->state_dict().empty()) return;
  const std::unique_ptr<GradScaler> trial = std::make_unique<DynamicGradScaler>(DynamicScaling{});
  trial->load_state_dict(state);  // throws what is wrong before anything changed
}

// Lists by group, from the dict by group that sharded checkpoints hold.
StateValue masters_as_list(const StateValue& saved) {
  const auto* const dict = saved.get_if<StateDict>();
  if (dict == nullptr) return saved;
  StateList list;
  for (size_t g = 0; g < dict->size(); ++g) {
    list.push_back(unwrapped(at(*dict, static_cast<int64_t>(g), kMasters)));
  }
  return list;
}

}  // namespace

StateValue GroupOptimizer::state_dict() {
  StepInside::of(*this).settle_counts();
  if (!has_masters()) return inner_state_dict(groups_);
  StateDict dict;
  put(dict, "optimizer", inner_state_dict(groups_));
  if (scaler_) put(dict, kScaler, scaler_->state_dict());
  StateList masters;
  for (const OptimizerGroup& group : groups_) masters.push_back(masters_of(group));
  put(dict, kMasters, std::move(masters));
  return dict;
}

std::function<void()> GroupOptimizer::prepare_load(const StateValue& state_dict) {
  StepInside::of(*this).refuse_while_queued();
  const StateDict& dict = as_dict(state_dict, "state_dict");
  StateLoad load;
  if (has_masters()) {
    const StateDict& inner = as_dict(at(dict, "optimizer", "state_dict"), "optimizer");
    const std::vector<size_t> match = load_inner_state(*this, groups_, inner, load);
    load_masters(*this, match, masters_as_list(at(dict, kMasters, "state_dict")), load);
    load_scaler(scaler_.get(), find(dict, kScaler), load);
  } else {
    load_inner_state(*this, groups_, dict, load);
  }
  return [load = std::move(load)] { load.commit(); };
}

StateValue GroupOptimizer::sharded_state_dict(const StateDict& model_sharded_state_dict,
                                              bool is_loading) {
  StepInside::of(*this).settle_counts();
  if (is_loading) init_state();
  std::vector<TensorHandle> model_params;
  for (const OptimizedParam* const param : get_parameters()) {
    model_params.push_back(handle_of(param->model.param));
  }
  const IdToShardedParamMap sharded =
      get_param_id_to_sharded_param_map(model_sharded_state_dict, model_params);
  if (!model_params.empty() && !sharded.warnings.empty()) {
    refuse_key("model_sharded_state_dict", sharded.warnings.front());
  }
  StateDict inner = inner_state_dict(groups_);
  const StateValue step = common_step(groups_);
  optim_state_to_sharding_state(inner, sharded.params, {"step"});
  if (step.get_if<std::monostate>() == nullptr) {
    put(*find(inner, "state")->get_if<StateDict>(), "common_step", step);
  }
  if (!has_masters()) return inner;
  StateDict dict;
  put(dict, "optimizer", std::move(inner));
  if (scaler_) put(dict, kScaler, scaler_->state_dict());
  put(dict, kMasters, sharded_masters(groups_, sharded.params));
  return dict;
}

}  // namespace optim
