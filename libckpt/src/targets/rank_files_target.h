#pragma once

#include "targets/plain_target.h"

namespace ckpt {

// A state {"model", "optim", "extra_state"} as the files of spec.ranks ranks of FSDP, as verl's
// FSDPCheckpointManager writes them (format/joined/rank_files.h). What is a DTensor, of which
// version and on which device is as in the source's files, of rank r as of rank r modulo their
// number. Values that ranks have of their own in extra_state (random states) stay with their rank:
// ranks that are not there any more are listed as not carried, new ones get none, which a warning
// says.
//
// A DCP folder has no DTensors: these are its tensors in several chunks, what the optimizer's
// groups name, and states of such a parameter's shape. What may be both is refused.
Target rank_files_target(const Checkpoint& source, PlainState state, const TargetSpec& spec);

// What apply() does first: leaves out ranks that are not there any more, and numbers what the
// optimizer names, as optimizer.state_dict() does, in the order of its groups.
void number_for_rank_files(uint64_t ranks, PlainState& state);

}  // namespace ckpt
