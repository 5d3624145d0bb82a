#pragma once

#include <training/opened_training.h>
#include <training/verify.h>

namespace optim {

// One step count per parameter group, no two groups that Megatron takes for each other when it
// loads them, and no setting that ranks have otherwise or lack. Adds to findings and group_count.
void check_groups(const OpenedTraining& checkpoint, VerifyReport& report);

}  // namespace optim
