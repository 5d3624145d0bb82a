#pragma once

#include <training/opened_training.h>
#include <training/training_state.h>

namespace optim {

// Of dense parameters and experts that get one optimizer: throws Corrupt where tensors in the
// further state of the old ones, as a grad scaler's, have different bytes. `filed`: of `source`.
void require_equal_in_merged(const TrainingState& view, const TrainingState& filed,
                             const OpenedTraining& source);

}  // namespace optim
