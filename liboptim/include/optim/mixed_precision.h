#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <optim/export.h>
#include <optim/grad_scaler.h>
#include <optim/optimizer.h>

namespace optim {

// What FP32Optimizer and Float16OptimizerWithFloat16Params share: groups of their own, each
// parameter updated by its group's rule.
class OPTIM_EXPORT GroupOptimizer : public Optimizer {
 public:
  GroupOptimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config);
  ~GroupOptimizer() override;

  std::vector<OptimizerGroup*> param_groups() override;
  bool step_with_ready_grads() override;
  double get_loss_scale() const override;
  StateValue state_dict() override;
  StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                bool is_loading = false) override;

  // What the reference calls init_state_fn: zeros for all states that are absent.
  OPTIM_PRIVATE void init_state();
  // fp32 values into whatever form the optimizer keeps. Throws Error(InvalidArgument), with the
  // parameter's name, for another shape.
  OPTIM_PRIVATE void set_master(OptimizedParam& param, const at::Tensor& value);
  OPTIM_PRIVATE void set_state(OptimizedParam& param, const std::string& name,
                               const at::Tensor& value);

  OPTIM_PRIVATE std::vector<OptimizerGroup>
  release_groups();  // leaves the optimizer without groups

 protected:
  OPTIM_PRIVATE std::function<void()> prepare_load(const StateValue& state_dict) override;
  OPTIM_PRIVATE bool collect_grads() override;
  OPTIM_PRIVATE void update_loss_scale(bool found_inf) override;
  virtual bool has_masters() const = 0;  // state dicts hold them apart

  std::vector<OptimizerGroup> groups_;
  StatePrecision precision_;
  std::unique_ptr<GradScaler> scaler_;  // null: gradients are not scaled
};

// Steps fp32 parameters in place.
class OPTIM_EXPORT FP32Optimizer final : public GroupOptimizer {
 public:
  // Throws Error(InvalidArgument) for a parameter that is not fp32, unless it is only to be wrapped
  // by a LayerWiseDistributedOptimizer (`wrapped_later`).
  FP32Optimizer(std::vector<OptimizerGroup> groups, OptimizerConfig config,
                bool wrapped_later = false);
  void reload_model_params() override {}

 protected:
  bool has_masters() const override { return false; }
};

// bf16 and fp16 parameters with masters; fp32 parameters are stepped in place. Updates round the
// masters to the model's tensors.
class OPTIM_EXPORT Float16OptimizerWithFloat16Params final : public GroupOptimizer {
 public:
  Float16OptimizerWithFloat16Params(std::vector<OptimizerGroup> groups, OptimizerConfig config);
  void reload_model_params() override;

 protected:
  bool has_masters() const override { return true; }
};

// Several optimizers that step as one.
class OPTIM_EXPORT ChainedOptimizer : public Optimizer {
 public:
  ChainedOptimizer(std::vector<std::unique_ptr<Optimizer>> optimizers, OptimizerConfig config);
  ~ChainedOptimizer() override;

  std::vector<OptimizerGroup*> param_groups() override;
  bool step_with_ready_grads() override;
  void reload_model_params() override;
  double get_loss_scale() const override;
  // A list of the optimizers' own, or the only one's.
  StateValue state_dict() override;
  // A dict by place in the chain, or the only one's; keys have no chained_N prefix.
  StateValue sharded_state_dict(const StateDict& model_sharded_state_dict,
                                bool is_loading = false) override;

 protected:
  OPTIM_PRIVATE std::function<void()> prepare_load(const StateValue& state_dict) override;
  OPTIM_PRIVATE bool collect_grads() override;
  OPTIM_PRIVATE void update_loss_scale(bool found_inf) override;
  OPTIM_PRIVATE void set_grad_scale(double scale) override;

  std::vector<std::unique_ptr<Optimizer>> chained_optimizers_;
};

}  // namespace optim
