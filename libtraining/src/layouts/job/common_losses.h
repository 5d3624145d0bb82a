#pragma once

#include <vector>

#include <ckpt/target.h>

#include "args/common_state.h"

namespace optim {

// What the common state of a torch_dist checkpoint holds that no conversion writes: keys of
// content_metadata that are not known, and the `state` of an optimizer without a step count.
std::vector<ckpt::NotCarried> common_losses(const CommonState& common);

}  // namespace optim
