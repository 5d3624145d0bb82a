#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <ckpt/checkpoint.h>
#include <optim/convert.h>

#include "repair/repair_state.h"

// What a conversion reads, mended as its options ask for.
namespace optim {

// Opens a source whose common state cannot be used with that of another checkpoint. nullopt:
// options do not ask for it. Throws InvalidArgument where they ask by half.
std::optional<RepairFinding> replace_common_state(const std::filesystem::path& source,
                                                  const RepairOptions& repair,
                                                  ckpt::OpenOptions& opening);

// The training state. `opened`: what was mended when the source was opened, which is the first of
// the repairs. Throws as name_layer_wise() and repair_state().
RepairedState read_repaired(const ckpt::Checkpoint& source, const ConvertOptions& options,
                            const std::vector<RepairFinding>& opened);

// Of a state that is refused because masters do not round to their weights: whether a repair that
// was not asked for may explain it.
bool may_be_displaced(const TrainingState& state, const std::vector<RepairFinding>& repairs);

inline bool is_mended(const RepairFinding& repair) {
  return repair.verdict == RepairFinding::Verdict::Mendable;
}

}  // namespace optim
