#pragma once

#include <optim/optimizer.h>

namespace optim {

// The fields of a group's dict in the reference's order, without `params`.
StateDict group_fields(const OptimizerGroup& group);

// {'state': {...}, 'param_groups': [...]}: what torch.optim.Optimizer.state_dict() gives.
StateDict inner_state_dict(std::vector<OptimizerGroup>& groups);

// Where a loaded value goes: nothing is written before everything was checked.
class StateLoad {
 public:
  void copy(at::Tensor target, at::Tensor source, const std::string& path);
  void assign(std::function<void()> assignment);
  void commit();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::vector<std::function<void()>> assignments_;
};

// Checks and queues the loading of an inner state dict; [i]: which saved group is the i-th of ours.
std::vector<size_t> load_inner_state(std::vector<OptimizerGroup>& groups, const StateDict& saved,
                                     StateLoad& load);

}  // namespace optim
