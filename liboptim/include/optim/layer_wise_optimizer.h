#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <optim/export.h>
#include <optim/mixed_precision.h>
#include <optim/ownership.h>
#include <optim/process_groups.h>

namespace optim {

// Called on each wrapped optimizer once it has its own parameters, e.g. to create its state.
using InitStateFn = std::function<void(GroupOptimizer&, const OptimizerConfig&)>;

struct LayerWiseOptions {
  std::vector<InitStateFn> init_state_fns = {};  // one per optimizer, or none
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  // Ranks of the layout; default: the processes of the dp_cp group. Rank r lives in process
  // r % processes: a process may hold several, or none.
  std::optional<uint32_t> layout_ranks = {};
};

// Megatron-Core's LayerWiseDistributedOptimizer: every rank has all parameters and updates those
// that it owns, with master and state of these only; then parameters are gathered. The result does
// not depend on the number of ranks or processes, bit for bit.
//
// Methods marked collective must be called by all processes of the group in the same order. After a
// collective operation failed (IoFailure) the object refuses all others.
class OPTIM_EXPORT LayerWiseDistributedOptimizer : public ChainedOptimizer {
 public:
  // `optimizers`: FP32Optimizers that hold all parameters, made with wrapped_later. With
  // config.bf16 they become Float16OptimizerWithFloat16Params of this process's share.
  // Throws Error(Unsupported), by name, for model, tensor or expert parallel groups of more than
  // one process, and for fp16.
  LayerWiseDistributedOptimizer(std::vector<std::unique_ptr<Optimizer>> optimizers,
                                OptimizerConfig config, ProcessGroupCollection groups = {},
                                LayerWiseOptions options = {});
  ~LayerWiseDistributedOptimizer() override;

  const Ownership& ownership() const;
  const std::vector<Param>& all_params() const;  // by id, owned or not

  double get_grad_norm() override;  // collective
  int64_t count_zeros() override;   // collective
  StepResult step() override;       // collective: the steps of Optimizer, then allgather_params()

  // Brings every parameter from its owner to all processes. Collective.
  void allgather_params();
  void broadcast_params();  // the same, parameter by parameter: the reference's test of the other

  // Collective. Groups without parameters here take the settings of the first process that has
  // some.
  StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                bool is_loading = false) override;

  // Megatron's layer_wise_optimizer_{rank}.pt: torch.save of state_dict(). For processes that hold
  // one rank. Loading throws what Checkpoint::open and load_state_dict throw.
  void save_state_dict_to_file(const std::filesystem::path& file);
  void load_state_dict_from_file(const std::filesystem::path& file);

 private:
  struct Sharding;
  std::vector<std::unique_ptr<Optimizer>> shard_params(
      std::vector<std::unique_ptr<Optimizer>> optimizers, const LayerWiseOptions& options);

  std::unique_ptr<Sharding> sharding_;
};

struct MegatronOptimizerOptions {
  std::optional<ConfigOverrides> overrides = {};  // default: get_standard_config_overrides()
  ProcessGroupCollection groups = {};
  std::optional<QkvSplit> qkv_split = {};  // of the model; needed by Muon with muon_split_qkv
  LayerWiseOptions layer_wise = {};
};

// The reference's factory: groups the parameters, makes the rules, shards, wraps.
// `params` in model order; the same on every process.
OPTIM_EXPORT std::unique_ptr<LayerWiseDistributedOptimizer> get_megatron_optimizer(
    const OptimizerConfig& config, std::vector<Param> params,
    const MegatronOptimizerOptions& options = {});

}  // namespace optim
