#pragma once

#include <string>
#include <vector>

#include "io/directory.h"

namespace ckpt {

// A file or folder that is made in a staging folder, with everything below it. `files`: as
// StagingOptions has them. Throws AlreadyExists where something else is there.
FolderTree tree_of_ours(const Place& content, const std::vector<std::string>& files);

}  // namespace ckpt
