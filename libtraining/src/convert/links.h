#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/write_target.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

// Files of a torch_dist source that a result shares: `reshard --link`.
namespace optim {

using Links = std::vector<ckpt::LinkedFile>;

// Throws Unsupported where files hold what the sizes change. `vocabulary_rows`: of the target.
void require_linkable(const OpenedTraining& source, const FiledState& state,
                      const LayerWiseTargetSpec& spec, uint64_t vocabulary_rows);

// Throws Unsupported where ranks of this grid have rows of gate and up in other places of the
// files.
void require_rows_in_place(const OpenedTraining& source, const FiledState& state,
                           const RunGrid& grid);

// Random states belong to pipeline stages and tensor parallel ranks.
bool has_same_stages(const RunGrid& a, const RunGrid& b);

// Links all files of the source that the target does not write itself, and takes out of the target
// those that it has as they are. Where random states stay, .metadata does, too.
Links link_what_stays(const OpenedTraining& source, ckpt::Target& target, bool same_places);

uint64_t count_bytes(const Links& links);

}  // namespace optim
