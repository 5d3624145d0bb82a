#pragma once

#include <training/opened_training.h>
#include <training/training_state.h>
#include <training/verify.h>

namespace optim {

// What other parts of a Megatron checkpoint show that it had, and that is not in it: the common
// state of a torch_dist folder, the random states of some ranks, a moment of every parameter that
// an optimizer has stepped. Adds to findings. `view` may be null.
void find_lacking(const OpenedTraining& checkpoint, const TrainingState* view,
                  VerifyReport& report);

}  // namespace optim
