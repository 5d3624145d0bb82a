#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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
std::vector<IterationFolder> list_iterations(const std::filesystem::path& root,
                                             const FolderConvention& convention,
                                             const Limits& limits = {});

// The names of iteration folders that list_iterations() leaves out without limits.follow_links:
// links that lead out of the root. In the order of their names. Throws as list_iterations().
std::vector<std::string> iterations_elsewhere(const std::filesystem::path& root,
                                              const FolderConvention& convention);

// The iteration that a root's tracker names; none where it has no tracker, or one that names a
// folder without a number. Throws Corrupt where it names something else.
std::optional<int64_t> latest_iteration(const std::filesystem::path& root,
                                        const FolderConvention& convention);

// Makes a folder of a root the one that its tracker names, in one step; not where the tracker names
// a later iteration. Throws as latest_iteration().
void set_latest(const std::filesystem::path& root, const std::string& folder_name,
                const FolderConvention& convention);

// Removes what a set_latest() left that was killed. False where nothing was.
bool clean_latest(const std::filesystem::path& root, const FolderConvention& convention);

// --- folders of a root that are no longer needed; none of these follows a link, and each throws
// Unsupported, by its path, for a mount below the folder ---

// Of the files in it.
uint64_t bytes_in_folder(const std::filesystem::path& root, const std::string& name);
// Takes it out of the root in one step, then removes what was in it.
void remove_folder(const std::filesystem::path& root, const std::string& name);
// The name under which a folder is made that is to take the place of another one; puts it there in
// one step, then removes what was there. Throws Unsupported where a file system cannot do that.
std::string name_while_prepared(const std::string& name);
void replace_by_prepared(const std::filesystem::path& root, const std::string& name);
// Removes what the two left that were killed, and what was prepared; the names of these.
std::vector<std::string> clean_removed(const std::filesystem::path& root);

}  // namespace ckpt
