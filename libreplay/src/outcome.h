#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <replay/replay.h>

#include "expectation.h"
#include "step/communication/collectives.h"

namespace optim {

// One tensor of the final state that can be compared or saved; the same list on every process.
struct StateItem {
  uint32_t id = 0;   // of the parameter
  std::string name;  // its name
  std::string kind;  // "model", "fp32_param", a state's name
  bool is_matrix_rule = false;
};
std::vector<StateItem> state_items(LayerWiseDistributedOptimizer& optimizer);

// The tensor of an item, where this process has it: states are their owner's, models everyone's.
class StateTensors {
 public:
  explicit StateTensors(LayerWiseDistributedOptimizer& optimizer);
  bool owns(const StateItem& item) const { return owned_.contains(item.id); }
  at::Tensor tensor(const StateItem& item) const;  // of an owned parameter
  const OptimizedParam& param(uint32_t id) const { return *owned_.at(id); }

 private:
  std::map<uint32_t, const OptimizedParam*> owned_;
};

// What decides whether a tensor is as expected.
struct Expected {
  const Expectation& state;
  const ReplayOptions& options;
  std::map<uint32_t, at::Tensor>
      start;  // [id] the owned matrices' masters, of rules that need whole ones, before the steps
};
std::map<uint32_t, at::Tensor> copy_matrix_masters(LayerWiseDistributedOptimizer& optimizer);

struct Comparison {
  std::vector<ComparedKind> kinds;
  // That differs: one outside its tolerance, or else any. Of a parameter what a step computes
  // first.
  std::optional<StateItem> first;
  Difference difference;  // of it
};
// Compares every item on its owner; the result is the same on every process. Collective.
Comparison compare_state(LayerWiseDistributedOptimizer& optimizer, const Expected& expected,
                         Collectives& collectives);

}  // namespace optim
