#include <optim/sharded_state.h>

#include <memory>
#include <optional>
#include <utility>

#include <ckpt/error.h>
#include <optim/rule_table.h>
#include <algorithm>

#include "sharded_state/refuse.h"

namespace optim {
namespace {

std::string text(const StateKey& key) {
  if (const auto* name = std::get_if<std::string>(&key)) return *name;
  return std::to_string(std::get<int64_t>(key));
}

// The leaves of a tree of dicts and lists in order, without recursion: a state dict's depth is its
// maker's choice. What is inside other leaves (LocalNonpersistentObject) is not visited.
class Leaves {
 public:
  explicit Leaves(const StateDict& root) { push(root); }

  const StateValue* next() {
    while (!stack_.empty()) {
      const StateValue* value = stack_.back();
      stack_.pop_back();
      if (const auto* dict = value->get_if<StateDict>())
        push(*dict);
      else if (const auto* list = value->get_if<StateList>())
        push(*list);
      else
        return value;
    }
    return nullptr;
  }

 private:
  void push(const StateDict& dict) {
    for (auto at = dict.rbegin(); at != dict.rend(); ++at) stack_.push_back(&at->second);
  }
  void push(const StateList& list) {
    for (auto at = list.rbegin(); at != list.rend(); ++at) stack_.push_back(&*at);
  }

  std::vector<const StateValue*> stack_;
};

std::optional<ShardedParam> as_sharded_param(const StateValue& value) {
  if (const auto* tensor = value.get_if<ShardedTensor>()) return *tensor;
  if (const auto* factory = value.get_if<ShardedTensorFactory>()) return *factory;
  return std::nullopt;
}

const void* identity_of(const ShardedParam& param) {
  return std::visit([](const auto& p) { return p.data ? p.data->identity : nullptr; }, param);
}

template <typename T>
const T& member(const StateDict& dict, std::string_view key, std::string_view expected) {
  const StateValue* value = find(dict, StateKey(std::string(key)));
  if (value == nullptr) refuse(key, "is missing from the optimizer's state dict");
  const T* content = value->get_if<T>();
  if (content == nullptr) refuse(key, "is not " + std::string(expected));
  return *content;
}

struct Mapping {
  const std::map<int64_t, ShardedParam>& id_to_sharded_param;
  const std::set<std::string>& exclude_keys;
};

// A state with a shape of its own (SOAP's factors): whole, in one chunk of each layer that the
// global tensor is stacked over. The reference cannot save it.
ShardedTensor with_own_shape(const ShardedTensor& model_param, const TensorHandle& state,
                             std::string key) {
  const auto stacked = static_cast<std::ptrdiff_t>(model_param.prepend_axis_num);
  const Shape& whole = model_param.global_shape;
  const bool is_split = !std::equal(whole.begin() + stacked, whole.end(),
                                    model_param.local_shape.begin(), model_param.local_shape.end());
  if (is_split) {
    refuse(key, "has a shape of its own, which tensor-parallel ranks cannot share");
  }
  ShardedTensor result = model_param;
  result.key = std::move(key);
  result.data = state;
  result.dtype = state.dtype;
  result.local_shape = state.shape;
  const auto behind_stack = [&](Shape& shape, auto&& value) {
    shape.resize(static_cast<size_t>(stacked));
    for (const int64_t size : state.shape) shape.push_back(value(size));
  };
  behind_stack(result.global_shape, [](int64_t size) { return size; });
  behind_stack(result.global_offset, [](int64_t) { return int64_t{0}; });
  if (result.axis_fragmentations) {
    behind_stack(*result.axis_fragmentations, [](int64_t) { return int64_t{1}; });
  }
  result.validate_metadata_integrity();
  return result;
}

ShardedParam sharded_state(const ShardedParam& model_param, const TensorHandle& state,
                           const std::string& name) {
  const auto known = std::ranges::find(all_states(), name, &StateSpec::name);
  const auto* const tensor = std::get_if<ShardedTensor>(&model_param);
  const bool is_own = known != all_states().end() && known->own_shape;
  const std::string prefix = "optimizer.state." + name;
  if (!is_own || (tensor != nullptr && state.shape == tensor->local_shape)) {
    return make_sharded_optimizer_tensor(model_param, state, prefix);
  }
  if (tensor != nullptr) return with_own_shape(*tensor, state, prefix + "." + tensor->key);
  refuse(prefix + "." + std::get<ShardedTensorFactory>(model_param).key,
         "has a shape of its own, which the parameter's factory cannot build");
}

// The states of one parameter.
StateDict shard_param_state(int64_t param_id, const StateDict& param_state,
                            const Mapping& mapping) {
  StateDict sharded;
  for (const auto& [state_key, value] : param_state) {
    const std::string name = text(state_key);
    if (mapping.exclude_keys.contains(name)) continue;
    const auto model_param = mapping.id_to_sharded_param.find(param_id);
    if (model_param == mapping.id_to_sharded_param.end()) {
      refuse("state." + std::to_string(param_id),
             "the parameter does not match any sharded parameter of the model." +
                 std::string(KEEP_VARS_HINT));
    }
    const auto* tensor = value.get_if<TensorHandle>();
    if (tensor == nullptr) {
      refuse("state." + std::to_string(param_id) + "." + name, "is not a tensor");
    }
    ShardedParam state = sharded_state(model_param->second, *tensor, name);
    sharded.emplace_back(state_key,
                         std::visit([](auto& s) { return StateValue(std::move(s)); }, state));
  }
  return sharded;
}

StateDict shard_state(const StateDict& state, const Mapping& mapping) {
  StateDict sharded;
  for (const auto& [id, param_state] : state) {
    const auto* number = std::get_if<int64_t>(&id);
    const auto* states = param_state.get_if<StateDict>();
    if (number == nullptr || states == nullptr) {
      refuse("state." + text(id), "is not a dict of states under an integer id");
    }
    sharded.emplace_back(id, shard_param_state(*number, *states, mapping));
  }
  return sharded;
}

StateList with_local_params(StateList groups) {
  for (StateValue& value : groups) {
    auto* group = value.get_if<StateDict>();
    StateValue* params = group ? find(*group, StateKey("params")) : nullptr;
    if (params == nullptr) refuse("param_groups", "a group is not a dict with 'params'");
    *params = LocalNonpersistentObject{std::make_shared<const StateValue>(std::move(*params))};
  }
  return groups;
}

}  // namespace

std::unordered_map<const void*, int64_t> get_optim_param_to_id_map(
    std::span<const TensorHandle> optim_params) {
  std::unordered_map<const void*, int64_t> ids;
  for (size_t i = 0; i < optim_params.size(); ++i) {
    ids.emplace(optim_params[i].identity, static_cast<int64_t>(i));
  }
  return ids;
}

IdToShardedParamMap get_param_id_to_sharded_param_map(const StateDict& model_sharded_state_dict,
                                                      std::span<const TensorHandle> optim_params) {
  const std::unordered_map<const void*, int64_t> ids = get_optim_param_to_id_map(optim_params);
  IdToShardedParamMap map;
  Leaves leaves(model_sharded_state_dict);
  while (const StateValue* leaf = leaves.next()) {
    std::optional<ShardedParam> param = as_sharded_param(*leaf);
    const void* identity = param ? identity_of(*param) : nullptr;
    if (identity == nullptr) continue;
    const auto at = ids.find(identity);
    if (at != ids.end()) map.params.insert_or_assign(at->second, std::move(*param));
  }
  if (map.params.empty()) {
    map.warnings.push_back("no tensor of the model's state dict is a parameter of the optimizer." +
                           std::string(KEEP_VARS_HINT));
  }
  return map;
}

ShardedParam make_sharded_optimizer_tensor(const ShardedParam& model_param,
                                           const TensorHandle& optim_param,
                                           std::string_view prefix) {
  ShardedParam result = model_param;
  std::visit(
      [&](auto& param) {
        param.key = std::string(prefix) + "." + param.key;
        param.data = optim_param;
      },
      result);
  if (auto* tensor = std::get_if<ShardedTensor>(&result)) {
    if (optim_param.shape != tensor->local_shape) {
      refuse(tensor->key, "the optimizer's tensor and the model's have different shapes");
    }
    tensor->dtype = optim_param.dtype;
    tensor->validate_metadata_integrity();
  }
  return result;
}

void optim_state_to_sharding_state(StateDict& optim_state_dict,
                                   const std::map<int64_t, ShardedParam>& id_to_sharded_param_map,
                                   const std::set<std::string>& exclude_keys) {
  const Mapping mapping{id_to_sharded_param_map, exclude_keys};
  StateDict state = shard_state(member<StateDict>(optim_state_dict, "state", "a dict"), mapping);
  StateList groups =
      with_local_params(member<StateList>(optim_state_dict, "param_groups", "a list"));
  put(optim_state_dict, "state", std::move(state));
  put(optim_state_dict, "param_groups", std::move(groups));
}

}  // namespace optim
