#pragma once

#include <vector>

#include "verify/contradicted_arg.h"
#include "verify/known_layers.h"
#include "verify/stated_args.h"

namespace optim {

// Heads, query groups and channels against the matrices of attention, of the first layer that
// contradicts them. With h heads, g groups and k channels linear_proj has hk columns, linear_qkv
// (h + 2g)k rows: one of the three that is wrong is found and named where the two tell it from the
// others; two that are wrong together are not where both products stay (8 heads of 4 channels in 4
// groups for 4 heads of 8 in 2), unless a norm of queries has the channels.
std::vector<ContradictedArg> contradicted_attention(const std::vector<KnownLayer>& layers,
                                                    const StatedArgs& args);

}  // namespace optim
