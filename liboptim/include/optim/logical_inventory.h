#pragma once

#include <ckpt/inventory.h>
#include <optim/layout_export.h>
#include <optim/training_state.h>

namespace optim {

// A LayerWise checkpoint as ckpt::hash() and ckpt::diff() take it: each parameter and state once,
// under its canonical name, and the common state as objects "args", "rng_state", ...,
// "optimizer.0". The same state gives the same inventory in every format and at every data-parallel
// size. Left out is what may differ then: args that name paths, formats and sizes, what a
// conversion does not carry (rerun_state_machine, rng_state of each data-parallel rank), model
// order, attributes of masters.
OPTIM_LAYOUT_EXPORT ckpt::Inventory logical_inventory(const TrainingState& checkpoint);

// That, or of what is no LayerWise checkpoint ckpt::plain_inventory(), with joined names where
// ckpt::join_places() finds them. Throws what they throw.
OPTIM_LAYOUT_EXPORT ckpt::Inventory logical_inventory(const ckpt::Checkpoint& checkpoint);

}  // namespace optim
