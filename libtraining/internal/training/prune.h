#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/limits.h>

namespace optim {

// Which iterations of a root stay. The newest that is complete always does, whole, and so does the
// one that the tracker names, and what is newer than both: a run may be writing it.
struct PruneOptions {
  uint64_t keep_last = 1;                             // of those that are complete
  std::optional<uint64_t> keep_every = {};            // iterations that this divides
  std::optional<int64_t> drop_optimizer_before = {};  // of kept ones below this the model alone
  bool acts = false;                                  // else only says what it would do
  ckpt::Limits limits = {};
  ckpt::ExecuteOptions execute = {};
};

struct PrunedIteration {
  enum class What : uint8_t { Kept, Removed, Trimmed } what = What::Kept;
  std::string name;  // iter_0000003
  int64_t iteration = 0;
  std::string reason;
  uint64_t bytes = 0, freed_bytes = 0;
};

struct PruneReport {
  std::vector<PrunedIteration> iterations;  // the newest first
  std::vector<std::string> cleaned;         // what an interrupted run left
  uint64_t freed_bytes = 0;
};

// Each iteration is taken out of the root, or replaced by its model, in one step; a run that was
// interrupted is finished by the next. Links are not followed. Throws NotFound where no iteration
// is complete; Unsupported for a root of others than Megatron, for mounts, and, before anything is
// done, where an optimizer cannot be left out.
PruneReport prune(const std::filesystem::path& root, const PruneOptions& options);

}  // namespace optim
