#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/limits.h>
#include <ckpt/root.h>

#include "format/location/location.h"

namespace ckpt {

// How a format is called, told from the others, and read.
struct FormatRow {
  Format format;
  std::string_view name;
  KeyStyle keys;
  // Whether this is one. They set what a Location says beside the format; null: it never is.
  bool (*is_folder)(const Folder&, Location&);
  bool (*is_file)(const FileHead&, Location&);
  // All but Catalog::format and its tables. Files may lack something.
  Contents (*read_contents)(const Location&, const Limits&);
  const char* what_works;  // where it is refused without a word of what to do
};
// In the order in which they are tried. A test adds one.
std::vector<FormatRow>& formats();
const FormatRow& row_of(Format format);

// What the text of a tracker names: an iteration, or none for the folder without a number. Throws
// Corrupt, with what was found and why it is neither.
std::optional<int64_t> tracked_iteration(std::string_view text, const FolderConvention& convention);
inline constexpr uint64_t kTrackerBytesMax = 64;
// iter_0000003 -> 3, and back.
std::optional<int64_t> iteration_named(std::string_view folder_name,
                                       const FolderConvention& convention);
std::string iteration_folder(int64_t iteration, const FolderConvention& convention);

// Follows roots, trackers and --iteration; tells formats apart by content. Throws NotFound, Corrupt
// (a tracker that holds junk, a link that leads out of the root) or Unsupported (a format that is
// known and not read). options.source is set.
Location find_checkpoint(const std::filesystem::path& path, const OpenOptions& options);

// Whether a folder is a root, or holds a checkpoint in one of the formats; its files are not
// opened. Without a convention there are no roots, and no folders of ranks.
bool holds_checkpoint(const Folder& source, const std::filesystem::path& folder,
                      const FolderConvention* convention);

// As list_iterations(), of any source.
std::vector<IterationFolder> iterations_in(const Folder& source, const std::filesystem::path& root,
                                           const FolderConvention& convention,
                                           const Limits& limits);

}  // namespace ckpt
