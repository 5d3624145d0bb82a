#pragma once

#include <training/layer_wise_checkpoint.h>

// Reads torch_dist folders.
namespace optim {

// `filing`: of the chain's optimizers, but for those of which the store shows another one.
FiledState read_store_folder(const OpenedTraining& checkpoint, const Filing& filing,
                             const ReadOptions& options);

}  // namespace optim
