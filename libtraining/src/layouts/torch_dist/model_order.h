#pragma once

#include <training/training_state.h>

#include "model/megatron_keys.h"

namespace optim {

// Puts the model's entries, which come as a store has them, into the order in which Megatron
// registers them, with what it leaves out of a store where it is None. Sets unknown_order.
void order_model(const KeyRules& rules, TrainingState& view);

}  // namespace optim
