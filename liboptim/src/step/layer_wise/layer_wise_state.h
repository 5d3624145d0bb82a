#pragma once

#include <optim/state_dict.h>

#include "step/communication/collectives.h"

namespace optim {

// Makes the sharded state dict of one process one of all processes, as the reference's layer-wise
// optimizer does: owners are the main replicas; masters become a dict by group; what is empty here
// is not saved from here; a group without parameters here takes its `step` from the first process
// that has some. Collective.
void finish_layer_wise_state(StateValue& state, Collectives& collectives);

}  // namespace optim
