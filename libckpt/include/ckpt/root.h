#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/export.h>
#include <ckpt/folder_convention.h>
#include <ckpt/limits.h>

namespace ckpt {

// A root of checkpoints: a folder of iterations, and a tracker that names one of them.

struct IterationFolder {
  int64_t iteration = 0;
  std::filesystem::path path;
};

// The iteration folders in a root that a program of the convention finds (iter_0000012, not
// iter_12), the newest first, whether they are complete or not; links only where limits allow them.
// Throws NotFound, IoFailure.
CKPT_EXPORT std::vector<IterationFolder> list_iterations(const std::filesystem::path& root,
                                                         const FolderConvention& convention,
                                                         const Limits& limits = {});

// The names of iteration folders that list_iterations() leaves out without limits.follow_links:
// links that lead out of the root. In the order of their names. Throws as list_iterations().
CKPT_EXPORT std::vector<std::string> iterations_elsewhere(const std::filesystem::path& root,
                                                          const FolderConvention& convention);

// The iteration that a root's tracker names; none where it has no tracker, or one that names a
// folder without a number. Throws Corrupt where it names something else.
CKPT_EXPORT std::optional<int64_t> latest_iteration(const std::filesystem::path& root,
                                                    const FolderConvention& convention);

// Makes a folder of a root the one that its tracker names, in one step; not where the tracker names
// a later iteration. Throws as latest_iteration().
CKPT_EXPORT void set_latest(const std::filesystem::path& root, const std::string& folder_name,
                            const FolderConvention& convention);

// Removes what a set_latest() left that was killed. False where nothing was.
CKPT_EXPORT bool clean_latest(const std::filesystem::path& root,
                              const FolderConvention& convention);

}  // namespace ckpt
