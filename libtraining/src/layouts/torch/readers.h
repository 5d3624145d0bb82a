#pragma once

#include <training/layer_wise_checkpoint.h>

// Reads `torch` folders.
namespace optim {

// `filing`: of all optimizers of the chain.
FiledState read_torch_folder(const OpenedTraining& checkpoint, const Filing& filing,
                             const ReadOptions& options);

// Whether ranks have files of a LayerWise optimizer of their own.
bool has_rank_files(const OpenedTraining& checkpoint);
// Whether any of them has one of a DistributedOptimizer.
bool has_flat_files(const OpenedTraining& checkpoint);
// Of a run with such an optimizer, but saved without any state of it.
bool is_model_alone(const OpenedTraining& checkpoint);

}  // namespace optim
