#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <optim/export.h>
#include <optim/optimizer_config.h>
#include <optim/param_group.h>
#include <optim/rule_config.h>

// What an optimizer steps: parameters with their masters and states, in groups.
namespace optim {

struct MatrixSplit;
class UpdateRule;

// Masters and states in fewer bits (use_precision_aware_optimizer), as FusedAdam has them:
// value = data * scale, in fp32. `scale`: fp32, one element; undefined: 1. fp16 and fp8 have one,
// the largest magnitude over 32752 (half of fp16's range) or 448 (fp8 e4m3's); zero tensors have
// scale 0.
struct PackedTensor {
  at::Tensor data, scale;
};

// `type`: Float, BFloat16, Half or Float8_e4m3fn, else Error(InvalidArgument). Rounds to nearest
// even; NaN and infinity make a scaled tensor NaN, never something finite.
PackedTensor pack(const at::Tensor& value, at::ScalarType type);
at::Tensor unpack(const PackedTensor& packed);  // a new fp32 tensor

// An fp32 master as its bf16 parameter and a signed 16-bit remainder, 4 bytes together, exact. The
// bf16 part is the nearest one but in ties, which go away from zero. Both are written in place.
struct RemainderParts {
  at::Tensor high;  // bf16: the model's parameter
  at::Tensor low;   // int16
};
void split_remainder(const at::Tensor& master, const RemainderParts& parts);
at::Tensor join_remainder(const RemainderParts& parts);  // a new fp32 tensor

// How the optimizer keeps what it keeps, by the configuration.
struct StatePrecision {
  at::ScalarType main_param = at::kFloat;
  at::ScalarType first_moment = at::kFloat;   // exp_avg, ...: StateSpec::Kind
  at::ScalarType second_moment = at::kFloat;  // exp_avg_sq, moment2_buffer
  bool remainders = false;                    // for bf16 parameters, where main_param is fp32

  at::ScalarType of_state(std::string_view state_name) const;
};
StatePrecision state_precision(const OptimizerConfig& config);

// The fp32 tensors that a rule keeps for one parameter, by the name they have in checkpoints. Empty
// until the first update.
using ParamState = std::map<std::string, at::Tensor>;

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
ParamState state_of(const OptimizedParam& param);

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
