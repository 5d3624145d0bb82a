#pragma once

#include <string>
#include <string_view>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>
#include <ckpt/value_tree.h>

#include "args/common_state.h"

// NeMo 2 files a run as a torch_dist folder of Megatron-Core, weights/, beside context/: what
// Megatron-LM would have stored of the same.
namespace optim {

// The text of model.yaml where it is NeMo's; empty: there is none.
std::string nemo_config(const ckpt::Checkpoint& checkpoint);

// The common state of Lightning as Megatron-LM has it, with args made of the configuration, and
// the tensors under its keys. Throws Unsupported where that is not read, or does not say how the
// checkpoint's state is dealt.
void translate_nemo(const std::string& config, const ckpt::Catalog& stored, CommonState& state);

// What that adds to the common state and NeMo does not have.
inline constexpr std::string_view kSchedulerOfNemo = "opt_param_scheduler";

// Back to what NeMo stores: a key of the folder, the common state that is a dict of `tree`.
std::string nemo_key(const std::string& key);
void make_common_of_nemo(ckpt::ValueTree& tree, ckpt::NodeId common);

}  // namespace optim
