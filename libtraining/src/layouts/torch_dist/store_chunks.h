#pragma once

#include <ckpt/torch_dist_target.h>

#include "layouts/job/holding_ranks.h"
#include "layouts/job/layer_wise_target.h"

// Tensors of a torch_dist folder: which chunks there are, and which rank writes each.
namespace optim {

// The chunks of model and optimizer, as the ranks of the target's grid store them: each owner its
// optimizer state, the model shared out so that ranks write equally much. A tensor of which nobody
// knows how tensor parallel ranks share it keeps the chunks that it has.
void add_store_chunks(const TargetJob& job, const HoldingRanks& ranks, ckpt::DistSpec& spec);

}  // namespace optim
