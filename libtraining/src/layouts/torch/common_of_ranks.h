#pragma once

#include <training/training_state.h>

#include "grid/layer_wise_view.h"
#include "layouts/parts/torch_source.h"

// What the model files of a `torch` folder hold beside model and optimizer.
namespace optim {

// The first file's goes to `common`, random states of all ranks to `view`. Throws Corrupt where
// files differ in what all ranks have alike: args but the rank's number, iteration, schedule.
void carry_common(const TorchSource& source, CommonBuilder& common, TrainingState& view);

}  // namespace optim
