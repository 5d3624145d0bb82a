#pragma once

#include <vector>

#include <ckpt/verify.h>
#include <training/opened_training.h>

namespace optim {

// Files of a Megatron checkpoint whose state is of another iteration than the folder's name says:
// training continues from the state's.
std::vector<ckpt::Finding> find_other_iterations(const OpenedTraining& checkpoint);

}  // namespace optim
