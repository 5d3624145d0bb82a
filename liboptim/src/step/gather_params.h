#pragma once

#include <span>
#include <vector>

#include <optim/optimizer.h>

#include "step/collectives.h"

namespace optim {

// Brings each parameter, bit for bit, from the process that owns it to all others, in rounds of
// bounded memory. `owner[i]`: the process of params[i]. Collective.
void gather_params(std::span<const Param> params, std::span<const int> owner,
                   Collectives& collectives);

// The same as one broadcast per parameter.
void broadcast_params(std::span<const Param> params, std::span<const int> owner,
                      Collectives& collectives);

}  // namespace optim
