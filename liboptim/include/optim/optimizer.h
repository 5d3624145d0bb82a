#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <optim/export.h>
#include <optim/packed_tensor.h>
#include <optim/param_group.h>
#include <optim/state_dict.h>
#include <optim/update_rule.h>

namespace kernels {
struct DeviceApi;
}

namespace optim {

// A parameter of the model: handles, the storage stays the caller's. fp32, bf16 or fp16,
// contiguous, on the CPU or, all of an optimizer's, on one GPU. `main_grad`: its gradient, of any
// of these types, reduced over data-parallel ranks; undefined: it has none, or bind_grads() will
// name it.
struct Param {
  ParamInfo info;
  at::Tensor param, main_grad;
};

// A parameter as the rank that updates it keeps it. What precision-aware optimizers keep in fewer
// bits lies in `packed`, `remainder` and `packed_state`; then `main_param` and `state` are empty
// between updates. master_of() and state_of() give the fp32 values either way.
struct OptimizedParam {
  uint32_t id = 0;  // its place in the concatenation of all groups of the chain, all ranks
  Param model;
  at::Tensor main_param;  // fp32: the master, or the model's own tensor where that is fp32
  at::Tensor grad;        // from prepare_grads() until zero_grad(): main_grad itself, or in fp32
  ParamState state;
  int64_t step = 0;           // updates done
  bool is_duplicate = false;  // the first tensor-parallel rank counts its gradient, this one not

  PackedTensor packed_master;
  at::Tensor remainder;  // int16: the lower half of a master whose upper half is the parameter
  std::map<std::string, PackedTensor> packed_state;
};
OPTIM_EXPORT bool has_master(const OptimizedParam& param);  // apart from the model's tensor
OPTIM_EXPORT at::Tensor master_of(const OptimizedParam& param);
OPTIM_EXPORT ParamState state_of(const OptimizedParam& param);

// One of the reference's param_groups on this rank. lr and weight_decay may be written between
// steps; weight_decay has wd_mult already in it.
struct OptimizerGroup {
  ParamGroup settings;  // its `params` stay empty
  double lr = 0, weight_decay = 0;
  RuleConfig rule_config;
  std::shared_ptr<const UpdateRule> rule;
  std::vector<OptimizedParam> params;
};

// A result that a device may still be computing; get() waits for it.
template <class T>
class Deferred {
 public:
  explicit Deferred(T value) : read_([value] { return value; }) {}
  explicit Deferred(std::function<T()> read) : read_(std::move(read)) {}
  T get() const { return read_(); }

 private:
  std::function<T()> read_;
};

class DeviceStepper;

struct StepResult {
  bool update_successful = false;  // false: an overflow; nothing moved, no step was counted
  std::optional<Deferred<double>> grad_norm = {};           // before clipping
  std::optional<Deferred<int64_t>> num_zeros_in_grad = {};  // after clipping; if the config asks
};

// Megatron-Core's MegatronOptimizer: what step() is made of may be called one by one, in this
// order: prepare_grads, get_grad_norm, clip_grad_by_total_norm, count_zeros, step_with_ready_grads.
// step() itself clips while it updates: main_grad keeps its values. Not thread-safe.
class OPTIM_EXPORT Optimizer {
 public:
  explicit Optimizer(OptimizerConfig config);
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const OptimizerConfig& config() const { return config_; }
  virtual std::vector<OptimizerGroup*> param_groups() = 0;
  std::vector<OptimizedParam*> get_parameters();  // that this rank updates, group by group

  // Sets each parameter's gradient to what `grad_of` gives for it (undefined: none).
  void bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of);
  void zero_grad(bool set_to_none = true);  // of fp32 copies; main_grad is its owner's to zero

  // Collects gradients, divides them by the loss scale and updates that. True: one is infinite or
  // NaN under loss scaling, skip the step.
  bool prepare_grads();
  // Global L2 norm, of gradients that are there and not `shared`: per parameter in fp64 in a fixed
  // order, then over parameters by id, so that its bits depend on the gradients alone.
  virtual double get_grad_norm();
  void clip_grad_by_total_norm(double max_norm, double total_norm);
  double clip_grad_norm(double max_norm);  // by get_grad_norm(), which it returns
  virtual int64_t count_zeros();
  virtual bool step_with_ready_grads() = 0;
  // Without loss scaling an infinite or NaN gradient, and no gradient at all, throw
  // Error(InvalidArgument) before anything moved.
  // Where the parameters lie on a GPU, everything is queued on the current stream and the host does
  // not wait, but for the loss scale where there is one; gradients are not checked without one; of
  // the calls above only bind_grads() works. Throws Error(Unsupported) where CUDA cannot be used
  // and for types that the kernels do not know, Error(IoFailure) where the device said no, both
  // before anything moved.
  virtual StepResult step();
  // Steps parameters on the CPU as if they lay on a device, by these kernels: for tests without a
  // GPU, with the kernels' CPU twins. `api` stays the caller's.
  void use_kernels(const kernels::DeviceApi& api) { device_api_ = &api; }
  virtual void reload_model_params() = 0;  // masters from the model's tensors

  virtual double get_loss_scale() const { return 1.0; }
  at::Tensor scale_loss(const at::Tensor& loss) const;

  // As the reference's, tensors as handles of the optimizer's own. Loading copies into them; it
  // throws Error(InvalidArgument) when groups, counts or shapes differ, before anything changed.
  virtual StateValue state_dict() = 0;
  void load_state_dict(const StateValue& state_dict);
  virtual StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                        bool is_loading = false) = 0;

 protected:
  friend class ChainedOptimizer;
  friend class TimedSection;

  // Checks all of a state; what it returns loads it, and does not throw.
  virtual std::function<void()> prepare_load(const StateValue& state_dict) = 0;

  // prepare_grads() is these three: this rank's overflow, all ranks', what follows from it.
  virtual bool collect_grads() = 0;
  virtual bool agree_on_overflow(bool found_inf) { return found_inf; }
  virtual void update_loss_scale(bool /*found_inf*/) {}
  // Of all ranks; known once get_grad_norm() was called.
  virtual int64_t grad_count();
  virtual void barrier() {}
  // Of a step on a GPU: where the parameters of all ranks lie, those of others included; adds up
  // all ranks' statistics by parameter id; how many ids there are; whether there are other ranks.
  virtual at::Device device();
  virtual void sum_stats(at::Tensor& /*stats*/) {}
  virtual uint32_t stats_count();
  virtual bool has_peers() const { return false; }
  bool is_on_device();
  // Factor of gradients that updates and zero counts apply when they read them.
  virtual void set_grad_scale(double scale) { grad_scale_ = scale; }
  double grad_scale_ = 1;

 private:
  void check_grads(double total_norm);
  StepResult step_on_device();
  StepResult queue_step();

  OptimizerConfig config_;
  const kernels::DeviceApi* device_api_ = nullptr;
  std::unique_ptr<DeviceStepper> device_stepper_;  // from the first step on a GPU on
};

struct GroupingOptions {
  ConfigOverrides overrides = {};
  std::optional<QkvSplit> qkv_split = {};
  std::vector<GroupKey> keys_of_all_ranks = {};  // see get_param_groups()
};

// Groups with rules, without masters or state, in the order of get_param_groups().
// Throws what get_param_groups() and rule_of_group() throw.
OPTIM_EXPORT std::vector<std::vector<OptimizerGroup>> make_optimizer_groups(
    std::vector<Param> params, const OptimizerConfig& config, const GroupingOptions& options);

}  // namespace optim
