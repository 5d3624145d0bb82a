#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <optim/layout_export.h>
#include <optim/optimizer_config.h>
#include <optim/param_key.h>

namespace optim {

// A value that a group overrides. Numbers compare by value whatever their type, as in Python.
using OverrideValue = std::variant<bool, int64_t, double, std::string>;
bool same_value(const OverrideValue& a, const OverrideValue& b);

// Keys: max_lr, min_lr, start_wd, end_wd, wd_mult, lr_mult, is_decoupled_lr, optimizer, and numbers
// that the group's rule reads (eps, momentum, ...); unknown ones are refused by name.
using ParamGroupOverride = std::map<std::string, OverrideValue>;

// In order of entry. Every override whose key matches applies.
using ConfigOverrides = std::vector<std::pair<ParamKey, ParamGroupOverride>>;

// What a dict assignment does: replaces the override of an equal key, or appends.
OPTIM_LAYOUT_EXPORT void set_override(ConfigOverrides& overrides, ParamKey key,
                                      ParamGroupOverride value);

// Megatron's defaults: biases and 1-D parameters are not decayed (but q/k layer norms, with
// apply_wd_to_qk_layernorm); decoupled_lr and decoupled_min_lr for input and output layers.
OPTIM_LAYOUT_EXPORT ConfigOverrides get_standard_config_overrides(const OptimizerConfig& config);

// What makes two parameters share a group. `overrides` nullopt: no key matched, sorts first.
struct GroupKey {
  std::optional<ParamGroupOverride> overrides = {};
  bool is_expert_parallel = false;
};

struct GroupedParam {
  size_t index = 0;  // in the list that was grouped
  ParamInfo info = {};
};

// A group, field by field as the reference's dict. Groups may be empty on a rank.
struct ParamGroup {
  uint32_t optimizer_index = 0;           // which of the chained optimizers it belongs to
  std::vector<GroupedParam> params = {};  // in model order
  bool is_expert_parallel = false;
  bool default_config = true;  // no override touches the learning rate
  double wd_mult = 1.0;
  double lr_mult = 1.0;               // stored for old checkpoints, never used
  bool is_decoupled_lr = false;       // the same
  std::optional<double> max_lr = {};  // of the schedule; the config's lr unless overridden
  std::optional<double> min_lr = {};
  std::optional<std::string> optimizer = {};  // only where overridden: "adam" beside Muon
  ParamGroupOverride others = {};             // further overridden keys: start_wd, end_wd, eps, ...
  std::string updated_by = {};                // "muon", "adam", ...: `optimizer`, or the config's
};

// The groups of all chained optimizers, concatenated in the order of the chain (optimizer_index
// never decreases): for Muon 0 = muon; 1 = adam, its decayed group before the others.
// Frozen parameters are skipped. expert_tp and is_qkv are tagged by name. Emerging optimizers
// (muon, soap, adaptive_muon) leave embeddings, output layers and all that is not 2-D to
// muon_scalar_optimizer. Expert groups have an optimizer of their own unless the sharding is
// layer-wise.
// `keys_of_all_ranks`: the keys of other ranks in rank order, so that every rank has the same
// groups. Throws Error(InvalidArgument) when two overrides of a parameter set a key to different
// values; when one sets `params`, `is_expert_parallel` or `default_config`, or a field to a wrong
// type, or a key that nothing reads (eps where the rule is muon); when one changes the config's
// optimizer_cpu_offload or overlap_param_gather_with_optimizer_step; when one gives a parameter
// that is no matrix to Muon. An override of `optimizer` (a name of rule_table.h) gives the
// parameter to that rule, whatever the config's; other names throw Error(Unsupported).
OPTIM_LAYOUT_EXPORT std::vector<ParamGroup> get_param_groups(
    std::span<const ParamInfo> params, const OptimizerConfig& config,
    const ConfigOverrides& overrides, std::span<const GroupKey> keys_of_all_ranks = {});

// What the reference refuses beyond that: an `optimizer` that is not the config's. Throws
// Error(InvalidArgument) with the field.
OPTIM_LAYOUT_EXPORT void validate_overrides(const OptimizerConfig& config,
                                            const ConfigOverrides& overrides, ReferenceRules);

// With get_standard_config_overrides(config).
OPTIM_LAYOUT_EXPORT std::vector<ParamGroup> get_param_groups(std::span<const ParamInfo> params,
                                                             const OptimizerConfig& config);
// The same, for infos that are moved into their groups.
OPTIM_LAYOUT_EXPORT std::vector<ParamGroup> get_param_groups(std::vector<ParamInfo> params,
                                                             const OptimizerConfig& config);

// The keys of this rank's groups in the order in which the parameters show them.
OPTIM_LAYOUT_EXPORT std::vector<GroupKey> get_group_keys(std::span<const ParamInfo> params,
                                                         const OptimizerConfig& config,
                                                         const ConfigOverrides& overrides);

}  // namespace optim
