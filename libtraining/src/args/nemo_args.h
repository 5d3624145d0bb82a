#pragma once

#include <string>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>

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

}  // namespace optim
