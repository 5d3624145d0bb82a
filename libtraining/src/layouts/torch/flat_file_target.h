#pragma once

#include <vector>

#include <ckpt/target.h>

#include "layouts/job/layer_wise_target.h"

namespace optim {

// distrib_optim.pt of the rank folders (flat_files.h has its grammar), in the order of the ranks
// that write them. Throws Unsupported for a grid in which ranks overwrite each other's.
std::vector<ckpt::TargetFile> make_flat_files(const TargetJob& job);

}  // namespace optim
