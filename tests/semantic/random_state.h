#pragma once

#include "semantic/state.h"
#include "support/random_tensors.h"

namespace semantic {

// A state dict with what real ones have and what none has: nested mappings and lists, empty ones,
// keys of other types and odd text, tensors that share storages, are views or have attributes, and
// containers that are referred to twice.
NodePtr random_state(test::Random& random);

}  // namespace semantic
