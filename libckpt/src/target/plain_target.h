#pragma once

#include "target/plain_state.h"

namespace ckpt {

// A flattened state dict as a DCP folder, as the nested state dict in a torch.save file
// (unflatten_state_dict), and as safetensors.
Target plain_torch_dist_target(PlainState state);
Target plain_torch_target(PlainState state);
Target plain_safetensors_target(PlainState state, bool as_folder);

}  // namespace ckpt
