#pragma once

#include <optim/mixed_precision.h>
#include <utility>

namespace optim {

// The fields of a group's dict in the reference's order, without `params`.
StateDict group_fields(const OptimizerGroup& group);

// {'state': {...}, 'param_groups': [...]}: what torch.optim.Optimizer.state_dict() gives.
StateDict inner_state_dict(std::vector<OptimizerGroup>& groups);

// Where a loaded value goes: nothing is written before everything was checked.
class StateLoad {
 public:
  void assign(std::function<void()> assignment) { assignments_.push_back(std::move(assignment)); }
  void commit() const;

 private:
  std::vector<std::function<void()>> assignments_;
};

// Checks and queues the loading of an inner state dict; [i]: which saved group is the i-th of ours.
std::vector<size_t> load_inner_state(GroupOptimizer& optimizer, std::vector<OptimizerGroup>& groups,
                                     const StateDict& saved, StateLoad& load);

}  // namespace optim
