#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <optim/export.h>
#include <optim/packed_tensor.h>
#include <optim/param_group.h>
#include <optim/update_rule.h>

// What an optimizer steps: parameters with their masters and states, in groups.
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
  // optimizer_cpu_offload: it lies on a GPU, its master and states on the CPU, which updates it.
  bool is_offloaded = false;
  std::shared_ptr<const MatrixSplit> split;  // of a matrix whose ranks update it together; or null
  // Where ranks update ranges of elements: of which parameter these are some, 1-D, and from where.
  int64_t first_element = 0;
  int64_t whole_count = 0;  // elements of the parameter; 0: it is whole

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

struct GroupingOptions {
  ConfigOverrides overrides = {};
  std::optional<QkvSplit> qkv_split = {};
  EmergingOptimizers era = EmergingOptimizers::V0_3;  // see rule_of_group()
  AdamArithmetic adam_arithmetic = AdamArithmetic::Torch;
  NewtonSchulzIteration newton_schulz_iteration = NewtonSchulzIteration::Standard;  // of Muons
  std::vector<GroupKey> keys_of_all_ranks = {};  // see get_param_groups()
};

// Groups with rules, without masters or state, in the order of get_param_groups().
// Throws what get_param_groups() and rule_of_group() throw.
OPTIM_EXPORT std::vector<std::vector<OptimizerGroup>> make_optimizer_groups(
    std::vector<Param> params, const OptimizerConfig& config, const GroupingOptions& options);

}  // namespace optim
