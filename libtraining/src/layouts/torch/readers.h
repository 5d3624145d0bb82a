#pragma once

#include <training/layer_wise_checkpoint.h>

// Readers of `torch` folders: rows of the table in layouts.cc.
namespace optim {

// Of LayerWiseDistributedOptimizer, and of optimizers that no rank shares.
TrainingState name_layer_wise_torch(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);
TrainingState name_unsharded_torch(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);
// Of DistributedOptimizers, whose state lies in flat buffers in distrib_optim.pt.
TrainingState name_flat_files(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);

// Whether ranks have files of a LayerWise optimizer of their own.
bool has_rank_files(const ckpt::Checkpoint& checkpoint);
// Whether any of them has one of a DistributedOptimizer.
bool has_flat_files(const ckpt::Checkpoint& checkpoint);
// Of a run with such an optimizer, but saved without any state of it.
bool is_model_alone(const ckpt::Checkpoint& checkpoint);

}  // namespace optim
