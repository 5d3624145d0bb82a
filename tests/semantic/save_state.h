#pragma once

#include <filesystem>

#include "semantic/state.h"

namespace semantic {

// Writes the file that torch.save would write of this state dict: storages, containers and
// Parameters shared as they are.
void save_state(const NodePtr& root, const std::filesystem::path& path);

}  // namespace semantic
