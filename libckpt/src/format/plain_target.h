#pragma once

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>

namespace ckpt {

// Plain state dicts, as torch.distributed.checkpoint flattens and unflattens them.
Target plain_torch_dist_target(const Checkpoint& source);
Target plain_torch_target(const Checkpoint& source);

}  // namespace ckpt
