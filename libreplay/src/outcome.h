#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <optim/optimizer_param_scheduler.h>
#include <replay/replay.h>
#include <training/layer_wise_checkpoint.h>

#include "matrix_cuts.h"
#include "recording.h"
#include "restored_optimizer.h"
#include "step/communication/collectives.h"

namespace optim {

// What a replay should end in: another checkpoint, or safetensors with KIND.NAME.
class Expectation {
 public:
  // Throws what Checkpoint::open and read_training_state throw; Unsupported for other files.
  // `cuts`: of the parameters that are compared; must outlive it.
  Expectation(const std::filesystem::path& path, const ckpt::Limits& limits, const Cuts& cuts);

  const Cuts& cuts() const { return cuts_; }

  // Of a parameter: "model", "fp32_param", a state's name. Throws Corrupt when it is absent or has
  // another shape or type than `ours`.
  at::Tensor tensor(const std::string& kind, const std::string& name, const at::Tensor& ours) const;

  // Whether counts of updates can be compared: a safetensors file may leave out all of them.
  bool has_steps() const;
  double step(const std::string& name) const;  // throws Corrupt when it is absent

  // Throws Corrupt for tensors that no key of `known` ("KIND.NAME") names; gradients may be there.
  void check_nothing_else(const std::set<std::string>& known) const;

 private:
  std::vector<std::pair<std::string, std::string>> contents() const;
  std::string key_of(const std::string& kind, const std::string& name) const;

  const Cuts& cuts_;
  Recording recording_;
  std::optional<FiledState> state_;  // nullopt: safetensors
  bool has_masters_ = false;         // master.NAME instead of fp32_param.NAME
  ckpt::Catalog tensors_;            // of the training state
};

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

struct ReplayResult {
  LayerWiseDistributedOptimizer& optimizer;
  const OptimizerParamScheduler& scheduler;
  int64_t iteration = 0;
};

// Writes options.output: the checkpoint that was read, with the state after the steps. Process 0
// writes, the others send it what they own. Collective; where process 0 fails, all fail. What was
// not carried is known to process 0.
std::vector<ckpt::NotCarried> save_result(const ReplaySource& source, const ReplayResult& result,
                                          const ReplayOptions& options, Collectives& collectives);

}  // namespace optim
