#pragma once

#include <ckpt/value.h>
#include <optim/layout_export.h>
#include <optim/optimizer_config.h>
#include <optim/rule_config.h>

namespace optim {

// From the `args` of a checkpoint: the Dict in Value::state() of its argparse.Namespace. Each field
// is the attribute of its name; an absent one keeps its default. Throws Error(Corrupt) with the
// field's name for a value of another type. Does not validate().
OPTIM_LAYOUT_EXPORT OptimizerConfig config_from_args(const ckpt::Value& args_namespace_state);

// From num_attention_heads, num_query_groups (counts only with group_query_attention: otherwise
// every head is a group) and kv_channels. Throws Error(Corrupt) when one is absent or not positive,
// Error(Unsupported) for gated attention (attention_output_gate).
OPTIM_LAYOUT_EXPORT QkvSplit qkv_split_from_args(const ckpt::Value& args_namespace_state);

}  // namespace optim
