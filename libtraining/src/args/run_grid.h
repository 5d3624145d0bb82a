#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ckpt/value.h>
#include <training/opened_training.h>
#include <training/size_change.h>
#include <training/training_state.h>

// What Megatron's training arguments say of the grid of ranks and of the model.
namespace optim {

inline constexpr std::string_view kLayerWiseArg = "use_layer_wise_distributed_optimizer";

// Fills grid and facts. `args`: the attributes of the Namespace in `file`. Throws Corrupt for sizes
// that are none, and Unsupported, by the name of the argument, for what no layout handles.
void read_args(const ckpt::Value& args, const std::string& file, TrainingState& view);

// All sizes of a checkpoint, as its args state them. Throws Unsupported where it has none.
SizeChange sizes_of(const OpenedTraining& checkpoint);

// True for an attribute that is there and True.
bool is_true(const ckpt::Value& args, std::string_view name);

// The flag that says that linear units are gated, of those that Megatron-LM's
// core_transformer_config_from_args asks (April 2026); nullopt: none does.
std::optional<std::string_view> stated_gating(const ckpt::Value& args);

}  // namespace optim
