#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <optim/layer_wise_optimizer.h>
#include <optim/update_rule.h>

#include "step/communication/collectives.h"
#include "step/communication/gather_params.h"
#include "step/layer_wise/matrix_splits.h"
#include "step/optimizer/peers_and_device.h"

namespace optim {

struct LayerWiseSharding {
  Collectives dense, experts, stats;
  LayerWiseOptions options = {};
  uint32_t layout_ranks = 1;
  bool one_cell_per_param = true;  // in `stats`, each parameter of the model has one owner
  int64_t cell_count = 0;          // parameters of the process that has most of them
  Ownership ownership = {};
  ProcessGroupCollection groups = {};
  std::optional<MatrixSplits> splits = {};     // always there after construction
  std::vector<Param> params = {};              // by id
  std::vector<SharedParam> dense_params = {};  // with the processes that own them
  std::vector<SharedParam> expert_params = {};
  // Once adopt_param_buffers() was called: of each of gather_groups().
  std::deque<AdoptedBuffer> buffers = {};
  int64_t grad_count = 0;  // of all processes, when the norm was taken last
};

// What travels together, in this order: dense parameters of a model chunk, then its experts.
struct GatherGroup {
  std::vector<SharedParam> params;
  Collectives* collectives = nullptr;
};
std::vector<GatherGroup> gather_groups(LayerWiseSharding& sharding, const OptimizerConfig& config);

// The processes among which the parameters are dealt out. Both arguments stay the caller's.
std::unique_ptr<Peers> make_peers(Optimizer& optimizer, LayerWiseSharding& sharding);

// Other processes, as far as one group of all of them tells.
class Processes : public Peers {
 public:
  // Both arguments stay the caller's.
  Processes(Optimizer& optimizer, Collectives& all, const int64_t& grad_count)
      : Peers(optimizer), all_(all), grad_count_(grad_count) {}

  bool are_there() const override { return all_.size() > 1; }
  bool agree_on_overflow(bool found_inf) override {
    return scales_loss(optimizer_.config()) ? any(found_inf) : found_inf;
  }
  bool any(bool mine) override { return max_of(mine ? 1 : 0, all_) != 0; }
  void barrier() override { max_of(0, all_); }
  int64_t grad_count() override { return grad_count_; }

 private:
  Collectives& all_;
  const int64_t& grad_count_;
};

// Numbers of all processes, as many of each: cell by cell, in each in the order of ranks. fp64.
std::vector<double> cells_of_ranks(at::Tensor& mine, Collectives& collectives);

// A gradient that is to be averaged over processes.
struct NamedGrad {
  const ParamInfo* info = nullptr;
  at::Tensor grad = {};
  int64_t kind = 0;  // what check_kinds() compares
};
NamedGrad named_grad(const Param& param, at::Tensor grad);
// Throws Error(InvalidArgument) on all processes alike, where one has no gradient that another has,
// or one that is not contiguous, of its parameter's shape and of a float type. Collective.
void check_kinds(const std::vector<NamedGrad>& grads, Collectives& collectives);

// With masters where the configuration has bf16 or fp16 parameters.
std::unique_ptr<GroupOptimizer> make_group_optimizer(std::vector<OptimizerGroup> groups,
                                                     const OptimizerConfig& config);

// Throws Error(InvalidArgument) for groups that do not fit each other.
void check_groups(const ProcessGroupCollection& groups, const LayerWiseOptions& options);

// What the processes of a group must have in common.
struct ModelOfProcess {
  const std::vector<Param>& params;  // by id
  const Ownership& ownership;
  const OptimizerConfig& config;
  const LayerWiseOptions& options;
  std::vector<OptimizerGroup*> groups;
};

// Throws Error(InvalidArgument), with what differs, when another process of `dense` has another
// configuration, options, groups, parameters or owners of them, or one of `experts` other experts,
// groups or owners of experts. Collective.
void check_same_model(const ModelOfProcess& model, Collectives& dense, Collectives& experts);

// One file per process, where config.config_logger_dir says. Throws Error(IoFailure).
void write_config(const OptimizerConfig& config, const ProcessGroupCollection& groups);

// Collective over groups.world where that is set: every rank has the same groups.
GroupingOptions grouping_options(const OptimizerConfig& config, std::span<const Param> params,
                                 const MegatronOptimizerOptions& options);

}  // namespace optim
