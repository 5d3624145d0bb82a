#pragma once

#include <vector>

#include "verify/contradicted_arg.h"
#include "verify/known_layers.h"
#include "verify/stated_args.h"

namespace optim {

// Arguments that decide which modules layers have and how wide they are, against what they have:
// experts, biases, norms, kinds of attention; each argument once.
std::vector<ContradictedArg> contradicted_modules(const std::vector<KnownLayer>& layers,
                                                  const StatedArgs& args);

}  // namespace optim
