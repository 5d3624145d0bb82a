#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <optim/export.h>
#include <optim/mixed_precision.h>
#include <optim/process_groups.h>

namespace optim {

struct RangeSharding;  // who updates which elements, and the communicators
class ParamGather;

struct DistributedOptimizerOptions {
  std::optional<ConfigOverrides> overrides = {};  // default: get_standard_config_overrides()
  ProcessGroupCollection groups = {};
  // Of the flat buffers, as Megatron's --ddp-bucket-size and
  // --ddp-pad-buckets-for-high-nccl-busbw: a bucket ends behind the parameter with which it has so
  // many elements; absent: one bucket. Each bucket is cut into one range per process.
  std::optional<uint64_t> bucket_elements = {};
  bool pad_buckets_for_high_nccl_busbw = false;
  int64_t gather_bucket_bytes = int64_t{16} << 20;                     // as LayerWiseOptions'
  std::function<bool(const ParamInfo&)> is_in_first_model_chunk = {};  // as LayerWiseOptions'
};

// Megatron-Core's DistributedOptimizer (ZeRO-1), with use_distributed_optimizer: every process has
// all parameters and updates ranges of elements, with masters and states of these only; then
// parameters are gathered. Adam, SGD, Lion. The results are those of whole parameters, bit for bit,
// for any number of processes and any buckets; only states with a scale per tensor (fp16, fp8) have
// one per range, as in the reference, and depend on it.
//
// Dense parameters are cut over `dp_cp`, experts (allreduce false) over `expt_dp`; norms and
// overflow go over `world`, or dp_cp where that is null. Each element type has buffers of its own.
// Buffers are laid out as Megatron's (docs/optimizer.md), so that ranges are the reference's.
//
// Methods marked collective, the constructor among them, must be called by all processes of the
// groups in the same order; after a failure of one the object refuses all others (IoFailure). Views
// of the parameters' storage are kept: it must not be replaced. Not thread-safe.
class OPTIM_EXPORT DistributedOptimizer : public ChainedOptimizer {
 public:
  // `params` in model order, the same on every process of dp_cp; grouped as
  // get_megatron_optimizer() does. Throws what OptimizerConfig::validate() and grouping throw;
  // Error(InvalidArgument) without use_distributed_optimizer, for groups that do not fit each
  // other, and where processes have other parameters or settings; Error(Unsupported) for rules that
  // are not by element and for parameters on a GPU.
  DistributedOptimizer(OptimizerConfig config, std::vector<Param> params,
                       DistributedOptimizerOptions options = {});
  ~DistributedOptimizer() override;

  const std::vector<Param>& all_params() const;  // by id
  // Elements of parameter `id` that this process updates: their first, and how many; 0: none.
  struct OwnRange {
    int64_t begin = 0, count = 0;
  };
  OwnRange own_range(uint32_t id) const;

  // `grad_of` gives gradients of whole parameters; what of them is not this process's is not read.
  void bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of) override;
  // For trainers whose framework does not reduce gradients; step() never does. The part of each
  // gradient that this process updates becomes its average over the processes, summed in fp32 in
  // the order of ranks; the rest stays as it is. `grad_of`: default main_grad, of each parameter.
  // Throws Error(InvalidArgument), on all processes alike, for a gradient that only some have, or
  // that is not contiguous, of the parameter's shape and of a float type. Collective.
  void reduce_scatter_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of = {});

  double get_grad_norm() override;        // collective
  int64_t count_zeros() override;         // collective
  bool step_with_ready_grads() override;  // collective
  StepResult step() override;  // collective: the steps of Optimizer, then allgather_params()
  void allgather_params();     // collective

  // Of whole parameters, in the form of the other optimizers, gathered from all processes:
  // collective, and each process holds all states for it. Loading takes the same, from any number
  // of processes.
  StateValue state_dict() override;
  // Megatron's fully_reshardable: `param_state` as the model's tensors under
  // "optimizer.state.{param, exp_avg, ...}.{key}", groups without parameters. Collective. Throws
  // Error(Unsupported) with is_loading.
  StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                bool is_loading = false) override;

 protected:
  OPTIM_PRIVATE std::function<void()> prepare_load(const StateValue& state_dict) override;

 private:
  OPTIM_PRIVATE std::vector<std::unique_ptr<ParamGather>> make_gathers();
  OPTIM_PRIVATE void cut_params(std::vector<Param> params);
  OPTIM_PRIVATE std::vector<std::unique_ptr<GroupOptimizer>> whole_optimizers();
  OPTIM_PRIVATE std::vector<std::unique_ptr<GroupOptimizer>> gather_states();  // collective

  std::unique_ptr<RangeSharding> sharding_;
};

}  // namespace optim
