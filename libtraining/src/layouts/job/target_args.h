#pragma once

#include <ckpt/archive_builder.h>

#include "layouts/job/layer_wise_target.h"

namespace optim {

// The Namespace of the target: `args` of the source with the grid, the vocabulary and the format
// that the target has, as a run of that grid would have saved them (docs/formats/args.md).
// Arguments that an old version does not have are not added.
ckpt::NodeId carry_args(const TargetJob& job, const ckpt::Value& args,
                        ckpt::ArchiveBuilder& archive);

// Sets the number of the rank that writes them.
void set_rank(ckpt::ValueTree& tree, ckpt::NodeId args, uint32_t rank);

}  // namespace optim
