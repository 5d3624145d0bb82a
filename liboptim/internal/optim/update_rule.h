#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <optim/export.h>
#include <optim/matrix_split.h>
#include <optim/newton_schulz.h>
#include <optim/optimized_param.h>
#include <optim/param_group.h>
#include <optim/rule_config.h>

namespace optim {

struct StepContext {
  double lr = 0;
  double weight_decay = 0;  // of the group, its wd_mult already in it
  int64_t step = 1;         // which update of this parameter it is, from 1
  double grad_scale = 1;    // clipping: the gradient that counts is fp32(grad * grad_scale)
};

// What one update changes. `param`: contiguous fp32 on the CPU, updated in place. `grad`:
// contiguous fp32, bf16 or fp16 of its shape; read only, but for L2 decay with grad_scale 1.
// `rounded`, where it is defined, is a contiguous bf16 or fp16 tensor of the same shape that
// receives the new values, rounded to nearest even. `split`: the parameter is this rank's part of a
// matrix; null: it is updated from its own tensors alone.
struct UpdateTarget {
  const ParamInfo* info = nullptr;
  at::Tensor param, grad;
  ParamState* state = nullptr;
  at::Tensor rounded = {};
  const MatrixSplit* split = nullptr;
};

// One parameter's share of a step.
struct UpdateItem {
  UpdateTarget target;
  StepContext context;
};

// How parameters are updated: each from its own tensors alone, so that the result does not depend
// on what else is in the list. No communication, but for parts of matrices (`split`), whose ranks
// must update the same ones in the same order; const and, without such parts, safe to call from
// many threads for different parameters.
class UpdateRule {
 public:
  explicit UpdateRule(RuleConfig config);
  virtual ~UpdateRule();
  const RuleConfig& config() const { return config_; }
  std::span<const std::string_view> state_names() const { return state_names_; }  // by its row
  // Creates absent states, updates all items. Throws Error(InvalidArgument) with the parameter's
  // name for shapes that the rule cannot update.
  virtual void update_all(std::span<const UpdateItem> items) const = 0;
  // Throws Error(InvalidArgument), with the state's name and the parameter's, for states that no
  // update can begin from. step() asks before anything moves.
  virtual void check(const UpdateTarget& target) const;
  OPTIM_EXPORT void update(const UpdateTarget& target,
                           const StepContext& context) const;  // of one parameter
  // What its row says, for every state that is absent.
  void init_state(const at::Tensor& param, ParamState& state) const;

 private:
  RuleConfig config_;
  std::vector<std::string_view> state_names_;
};
// Throws what the row's check() throws.
OPTIM_EXPORT std::unique_ptr<UpdateRule> make_rule(const RuleConfig& config);

}  // namespace optim
