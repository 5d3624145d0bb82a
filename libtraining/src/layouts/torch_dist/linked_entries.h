#pragma once

#include <ckpt/torch_dist_target.h>
#include <training/opened_training.h>

namespace optim {

// Every tensor and object of a torch_dist folder, where they lie in its files: Megatron finds them
// by key, whatever the grid. Random states of the old grid have keys of their own (its sizes).
// Throws Unsupported for compressed entries.
void add_linked_entries(const OpenedTraining& source, ckpt::DistSpec& spec);

// A rank of which the folder has no file, so that a file of its own is new.
uint32_t unused_rank(const OpenedTraining& source);

}  // namespace optim
