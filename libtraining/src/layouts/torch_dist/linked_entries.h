#pragma once

#include <ckpt/checkpoint.h>
#include <ckpt/torch_dist_target.h>

namespace optim {

// Every tensor and object of a torch_dist folder, where they lie in its files: Megatron finds them
// by key, whatever the grid. Random states of the old grid have keys of their own (its sizes).
// Throws Unsupported for compressed entries.
void add_linked_entries(const ckpt::Checkpoint& source, ckpt::DistSpec& spec);

// A rank of which the folder has no file, so that a file of its own is new.
uint32_t unused_rank(const ckpt::Checkpoint& source);

}  // namespace optim
