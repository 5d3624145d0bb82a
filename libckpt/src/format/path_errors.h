#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <ckpt/folder.h>
#include <ckpt/folder_convention.h>

namespace ckpt {

// Paths that name no checkpoint: what is there, what was expected, and which path may have been
// meant. `path` as the user named it.

// Of a path that nothing is at. Throws Unsupported for an address (s3://...), else NotFound.
[[noreturn]] void refuse_missing(const Folder& source, const std::filesystem::path& path);

// Of a folder that holds no checkpoint. Throws Unsupported for what other programs write, else
// NotFound, with the checkpoints that lie below it.
[[noreturn]] void refuse_folder(const Folder& source, const std::filesystem::path& folder,
                                const FolderConvention* convention);

// What iterations a root holds, for a hint: empty where it holds none.
std::string hint_of_iterations(const Folder& source, const std::filesystem::path& root,
                               const FolderConvention& convention);

// Of an iteration that was asked for by number. Throws NotFound.
[[noreturn]] void refuse_iteration(const Folder& source, const std::filesystem::path& root,
                                   int64_t iteration, const FolderConvention& convention);

// Throws Unsupported where a file is a part of what its folder holds: .metadata, a .distcp, the
// tracker. `head`: its first bytes.
void refuse_part(const Folder& source, const std::filesystem::path& path, std::string_view head,
                 const FolderConvention* convention);

// Of a file that is read by none of the formats. Throws Unsupported for what other programs write,
// else Corrupt.
[[noreturn]] void refuse_file(const std::filesystem::path& path, const RandomAccess& file);

}  // namespace ckpt
