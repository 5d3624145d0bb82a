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

struct LayerWiseSharding;  // who owns what, and the communicators
class ParamGather;

struct LayerWiseOptions {
  std::vector<InitStateFn> init_state_fns = {};  // one per optimizer, or none
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  // Ranks of the layout; default: the processes of the dp_cp group. Rank r lives in process
  // r % processes: a process may hold several, or none.
  std::optional<uint32_t> layout_ranks = {};
  int64_t gather_bucket_bytes = int64_t{16} << 20;  // of a process, in each round of a gather
  // With overlap_param_gather_with_optimizer_step: what travels while the rest is updated.
  std::function<bool(const ParamInfo&)> is_in_first_model_chunk = {};
};

// Megatron-Core's LayerWiseDistributedOptimizer: every rank has all parameters and updates those
// that it owns, with master and state of these only; then parameters are gathered. The result does
// not depend on the number of ranks or processes, bit for bit.
//
// Dense parameters are shared by the processes of `dp_cp`, experts (allreduce false) by those of
// `expt_dp`; the norm is taken over `world`, or over dp_cp where that is null. With several
// tensor-parallel processes a parameter that is not split counts on the first of them.
//
// Methods marked collective, the constructor among them, must be called by all processes of the
// groups in the same order. After a collective operation failed (IoFailure: another process died,
// or did not call within the group's timeout) the object refuses all others.
class OPTIM_EXPORT LayerWiseDistributedOptimizer : public ChainedOptimizer {
 public:
  // `optimizers`: FP32Optimizers that hold all parameters, made with wrapped_later. With
  // config.bf16 they become Float16OptimizerWithFloat16Params of this process's share.
  // Throws what OptimizerConfig::validate() throws, and
  // Error(InvalidArgument) when processes of dp_cp have other parameters, owners, groups, options
  // or another configuration than this one, or those of expt_dp other experts; for groups that do
  // not fit each other, and for init_state_fns of another number than the optimizers.
  LayerWiseDistributedOptimizer(std::vector<std::unique_ptr<Optimizer>> optimizers,
                                OptimizerConfig config, ProcessGroupCollection groups = {},
                                LayerWiseOptions options = {});
  ~LayerWiseDistributedOptimizer() override;

  const Ownership& ownership() const;
  const std::vector<Param>& all_params() const;  // by id, owned or not

  double get_grad_norm() override;  // collective
  int64_t count_zeros() override;   // collective
  // Collective: the steps of Optimizer, then allgather_params(). With overlap_param_gather the
  // parameters of a round travel while later ones are updated; the result has the same bits.
  StepResult step() override;
  bool step_with_ready_grads() override;  // collective with overlap_param_gather

  // For trainers whose framework does not reduce gradients; step() never does. Replaces each
  // gradient by its average over dp_cp, an expert's by that over expt_dp: summed in fp32 in the
  // order of ranks, so that all have the same bits in every run. In place, on what `grad_of` gives
  // for each parameter, owned or not, by default the main_grad that it was constructed with. Each
  // process receives the gradients of all, piece by piece of gather_bucket_bytes. Throws
  // Error(InvalidArgument) with the parameter's name, on all processes of its group and before
  // anything changed there, for one that only some have, or of another shape or type. Collective.
  void allreduce_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of = {});

  void allgather_params();  // from the owner of each to all processes; collective
  // Moves all parameters into buffers of this object, so that gathering copies nothing: each
  // tensor that the caller gave becomes a view (at::Tensor::set_data), values and handles stay.
  // Views of the tensors made before keep the old storage.
  void adopt_param_buffers();
  void broadcast_params();  // the same, parameter by parameter: the reference's test of the other

  // Collective. The `step` of a group is that of the first process that has parameters of it.
  StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                bool is_loading = false) override;

  // Megatron's layer_wise_optimizer_{rank}.pt: torch.save of state_dict(). For processes that hold
  // one rank. Loading throws what Checkpoint::open and load_state_dict throw.
  void save_state_dict_to_file(const std::filesystem::path& file);
  void load_state_dict_from_file(const std::filesystem::path& file);

 private:
  OPTIM_PRIVATE std::vector<std::unique_ptr<Optimizer>> shard_params(
      std::vector<std::unique_ptr<Optimizer>> all);
  OPTIM_PRIVATE void deal_out(std::vector<std::vector<OptimizerGroup>>& groups_by_optimizer);
  OPTIM_PRIVATE std::vector<std::unique_ptr<ParamGather>> make_gathers();  // once
  std::unique_ptr<LayerWiseSharding> sharding_;
};

struct MegatronOptimizerOptions {
  std::optional<ConfigOverrides> overrides = {};  // default: get_standard_config_overrides()
  ProcessGroupCollection groups = {};
  std::optional<QkvSplit> qkv_split = {};  // of the model; needed by Muon with muon_split_qkv
  EmergingOptimizers era = EmergingOptimizers::V0_3;  // of SOAP and adaptive Muon
  AdamArithmetic adam_arithmetic = AdamArithmetic::Torch;
  NewtonSchulzIteration newton_schulz_iteration = NewtonSchulzIteration::Standard;  // of Muons
  LayerWiseOptions layer_wise = {};
};

// The reference's factory: groups the parameters, makes the rules, shards, wraps.
// `params` in model order; the same on every process of dp_cp. Where `groups.world` is set, group
// keys are gathered over it, so that all its ranks have the same groups in the same order, some of
// them empty; collective then. Throws Error(InvalidArgument) with muon_split_qkv where Muon is to
// split a weight and `qkv_split` is absent or does not fit its rows.
OPTIM_EXPORT std::unique_ptr<LayerWiseDistributedOptimizer> get_megatron_optimizer(
    const OptimizerConfig& config, std::vector<Param> params,
    const MegatronOptimizerOptions& options = {});

}  // namespace optim
