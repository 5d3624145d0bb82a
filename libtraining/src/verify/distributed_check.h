#pragma once

#include <training/opened_training.h>
#include <training/training_state.h>
#include <training/verify.h>

namespace optim {

// What the optimizers of a chain must have: a step count where moments are averages over steps; of
// a DistributedOptimizer in each group, and in common one; and what Megatron-Core up to 0.12 does
// to its groups when it loads them. Adds to findings.
void check_distributed_optimizers(const TrainingState& view, const OpenedTraining& checkpoint,
                                  VerifyReport& report);

}  // namespace optim
