#include "step/layer_wise/layer_wise_state.h"

#include <ATen/ops/zeros.h>

#include <memory>
#include <utility>
#include <vector>

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

// The `step` of groups that have one on some process: [group], -1 where none has it.
std::vector<int64_t> common_steps(const StateList& groups, Collectives& collectives) {
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
  std::vector<int64_t> steps(groups.size(), -1);
  for (int64_t rank = collectives.size() - 1; rank >= 0; --rank) {
    for (int64_t g = 0; g < group_count; ++g) {
      const int64_t cell = cells[rank * group_count + g];
      if (cell > 0) steps[static_cast<size_t>(g)] = cell - 1;
    }
  }
  return steps;
}

void finish_groups(StateList& groups, Collectives& collectives) {
  const std::vector<int64_t> steps = common_steps(groups, collectives);
  for (size_t g = 0; g < groups.size(); ++g) {
    StateDict& fields = *groups[g].get_if<StateDict>();
    if (steps[g] >= 0) put(fields, "step", steps[g]);
  }
}

}  // namespace

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

}  // namespace optim
