#pragma once

#include <utility>

#include <ckpt/inventory.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

namespace optim {

// A training state as ckpt::hash() and ckpt::diff() take it: each parameter and state once, under
// its canonical name, and the common state as objects "args", "opt_param_scheduler", ...,
// "optimizer.0": its parameters by their settings. The same state gives the same inventory in every
// layout and at every parallel size. Left out is what may differ then: args that name paths,
// formats and sizes or follow from these, the number and order of groups, random states and
// counters of ranks, model order, attributes of masters.
ckpt::Inventory logical_inventory(const FiledState& checkpoint);

// The inventories of two states, to be compared. Where both are of one grid, with the random states
// of their ranks, which mean the same only there.
std::pair<ckpt::Inventory, ckpt::Inventory> logical_inventories(const FiledState& a,
                                                                const FiledState& b);

// What these leave out of two states, as objects: "common.args", "common.groups", the random states
// of ranks of different grids ("common.rng_state"). It may differ between equal states; who
// compares two runs still wants to see it.
std::pair<ckpt::Inventory, ckpt::Inventory> left_out_inventories(const FiledState& a,
                                                                 const FiledState& b);

// logical_inventory() of a checkpoint's state, or of what is no LayerWise checkpoint
// ckpt::plain_inventory(), with joined names where ckpt::join_places() finds them. Throws what they
// throw.
ckpt::Inventory logical_inventory(const OpenedTraining& checkpoint);

}  // namespace optim
