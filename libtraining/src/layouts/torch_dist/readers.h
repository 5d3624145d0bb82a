#pragma once

#include <training/layer_wise_checkpoint.h>

// Readers of torch_dist folders whose optimizer state has the names of parameters: rows of the
// table in layouts.cc.
namespace optim {

TrainingState name_layer_wise_dist(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);

// The same where the state is in ranges of flattened fragments (flattened_ranges.h).
TrainingState name_flattened_ranges(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);

}  // namespace optim
