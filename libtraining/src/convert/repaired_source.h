#pragma once

#include <filesystem>
#include <vector>

#include <training/convert.h>
#include <training/opened_training.h>

#include "issues/issue.h"

// What a conversion reads, mended as its options ask for.
namespace optim {

struct OpenedSource {
  OpenedTraining checkpoint;
  std::vector<RepairFinding> repairs;  // of the common state, where options ask for it
};
// A source whose common state cannot be used has that of another checkpoint. Throws as
// open_checkpoint(); InvalidArgument where options ask by half; Corrupt, with what works, where
// ranks overwrote each other's files.
OpenedSource open_source(const std::filesystem::path& path, const ConvertOptions& options);

// A Hugging Face folder that is compared with such a source. Throws Unsupported for one without
// safetensors.
OpenedTraining open_hugging_face(const std::filesystem::path& folder, const ckpt::Limits& limits);

// Of an export: takes args from the config.json that verl writes beside its shards.
void look_beside(const std::filesystem::path& source, ConvertOptions& options);

// The training state. `opened`: what was mended when the source was opened, which is the first of
// the repairs. Throws as read_training_state() and repair_state().
RepairedState read_repaired(const OpenedTraining& source, const ConvertOptions& options,
                            const std::vector<RepairFinding>& opened);

// Of a state that is refused because masters do not round to their weights: what to do where a
// repair that was not asked for may explain it; else empty.
std::string what_may_mend(const FiledState& state, const std::vector<RepairFinding>& repairs);

inline bool is_mended(const RepairFinding& repair) {
  return repair.verdict == RepairFinding::Verdict::Mendable;
}

}  // namespace optim
