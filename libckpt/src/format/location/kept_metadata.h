#pragma once

#include <memory>

#include <ckpt/folder.h>
#include <ckpt/folder_convention.h>

namespace ckpt {

// `source`, whose metadata files are opened once, at their first open(): small ones are read once,
// too. These are .metadata and what `convention`, if any, says of a root and of a torch_dist
// folder.
std::shared_ptr<const Folder> keep_metadata(std::shared_ptr<const Folder> source,
                                            const FolderConvention* convention);

}  // namespace ckpt
