#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <optim/export.h>
#include <optim/optimized_param.h>
#include <optim/state_dict.h>
#include <optim/step_result.h>

namespace optim {

class StepInside;

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
  virtual void bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of);
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
  // not wait, but for the loss scale where there is one and for the gradients of parameters that
  // are offloaded; gradients are not checked without one; of
  // the calls above only bind_grads() works. Throws Error(Unsupported) where CUDA cannot be used
  // and for types that the kernels do not know, Error(IoFailure) where the device said no, both
  // before anything moved.
  virtual StepResult step();
  virtual void reload_model_params() = 0;  // masters from the model's tensors

  // Steps that a trainer records in a CUDA graph of its own: what the four do, need and refuse is
  // in queued_step.h. With several processes collective, but for end_queued_steps().
  OPTIM_PRIVATE void prepare_queued_steps(const QueuedStepSources& sources);
  OPTIM_PRIVATE QueuedStep queue_step();
  OPTIM_PRIVATE void end_queued_steps();
  // Moves dynamic loss scaling as step() would have done after a queued step; get_loss_scale() is
  // then what belongs into QueuedStepSources::loss_scale.
  OPTIM_PRIVATE void note_queued_step(bool skipped);
  // lr and weight_decay of each group now: float64 on the CPU, as QueuedStepSources::rates has it.
  OPTIM_PRIVATE at::Tensor group_rates();

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

  // Checks all of a state; what it returns loads it, and does not throw.
  virtual std::function<void()> prepare_load(const StateValue& state_dict) = 0;

  // prepare_grads() is: this rank's overflow, all ranks', what follows from it.
  virtual bool collect_grads() = 0;
  virtual void update_loss_scale(bool /*found_inf*/) {}
  // Factor of gradients that updates and zero counts apply when they read them.
  virtual void set_grad_scale(double scale) { grad_scale_ = scale; }
  double grad_scale_ = 1;

 private:
  friend class StepInside;  // the library's own: the other processes, and the device

  OPTIM_PRIVATE void check_grads(double total_norm);
  OPTIM_PRIVATE void check_states();

  OptimizerConfig config_;
  std::unique_ptr<StepInside> inside_;
};

}  // namespace optim
