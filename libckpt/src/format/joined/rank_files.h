#pragma once

#include "format/location/contents.h"
#include "format/location/location.h"

namespace ckpt {

// What FSDP's ranks save one by one, as verl names it:
//
//   model_world_size_W_rank_R.pt, optim_..., extra_state_...    R from 0 to W - 1
//
// read as one state: {"model": ..., "optim": ..., "extra_state": ...}, of which DTensors and
// ShardedTensors are put together, and what all ranks have alike is there once. What ranks have of
// their own in extra_state and model is that of rank 0, and of the others at
// {"ranks": {R: {place: value}}}. A file that is missing, ends early, was saved by another rank or
// for another number of ranks, or has another optimizer's state than rank 0's lacks something.
bool is_rank_files_folder(const Folder& source, const Location& location);
Contents read_rank_files(const Location& location, const Limits& limits);

}  // namespace ckpt
