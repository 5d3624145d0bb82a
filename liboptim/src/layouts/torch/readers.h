#pragma once

#include <optim/layer_wise_checkpoint.h>

// Readers of `torch` folders: rows of the table in layouts.cc.
namespace optim {

// Of LayerWiseDistributedOptimizer, and of optimizers that no rank shares.
TrainingState name_layer_wise_torch(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);
TrainingState name_unsharded_torch(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);

}  // namespace optim
