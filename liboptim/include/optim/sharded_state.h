#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include <optim/layout_export.h>
#include <optim/state_dict.h>

namespace optim {

// megatron.core.dist_checkpointing.optimizer in C++: optimizer state to sharded state.

using ShardedParam = std::variant<ShardedTensor, ShardedTensorFactory>;

// Appended to warnings and errors about parameters that cannot be found.
inline constexpr std::string_view KEEP_VARS_HINT =
    " Shardwise matches parameters by identity: the model's state dict must hold the very tensors"
    " that the optimizer updates (in PyTorch: `.state_dict(keep_vars=True)`), and a parameter that"
    " needs a transformation goes through a ShardedTensorFactory.";

// Identity of each parameter -> its place in the optimizer; of a repeated parameter the first.
OPTIM_LAYOUT_EXPORT std::unordered_map<const void*, int64_t> get_optim_param_to_id_map(
    std::span<const TensorHandle> optim_params);

struct IdToShardedParamMap {
  std::map<int64_t, ShardedParam> params;
  std::vector<std::string> warnings;  // one, with KEEP_VARS_HINT, when `params` is empty
};

// The state dict may have any structure; the parameters come in the optimizer's order.
OPTIM_LAYOUT_EXPORT IdToShardedParamMap get_param_id_to_sharded_param_map(
    const StateDict& model_sharded_state_dict, std::span<const TensorHandle> optim_params);

// The model parameter's sharding around optimizer state, under "{prefix}.{key}". Throws
// Error(InvalidArgument) when the local shapes differ.
OPTIM_LAYOUT_EXPORT ShardedParam make_sharded_optimizer_tensor(const ShardedParam& model_param,
                                                               const TensorHandle& optim_param,
                                                               std::string_view prefix);

// In place: each tensor of `state` becomes "optimizer.state.{its key}.{key of the parameter}", the
// `params` of each of `param_groups` a LocalNonpersistentObject. Throws Error(InvalidArgument) for
// a parameter id without a sharded parameter, a state that is no tensor, a malformed dict; then
// the dict is unchanged.
OPTIM_LAYOUT_EXPORT void optim_state_to_sharding_state(
    StateDict& optim_state_dict, const std::map<int64_t, ShardedParam>& id_to_sharded_param_map,
    const std::set<std::string>& exclude_keys = {});

}  // namespace optim
