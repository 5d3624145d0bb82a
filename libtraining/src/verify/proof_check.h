#pragma once

#include <training/opened_training.h>
#include <training/training_state.h>
#include <training/verify.h>

namespace optim {

// What shardwise-proof.json promises of the folder in which it lies: the elements of each state,
// and, unless only the structure is looked at, the logical hash of all. Nothing where there is
// none.
// `state`: of the checkpoint; null where its parameters are not known.
void check_proof(const OpenedTraining& checkpoint, const TrainingState* state,
                 const VerifyOptions& options, VerifyReport& report);

}  // namespace optim
