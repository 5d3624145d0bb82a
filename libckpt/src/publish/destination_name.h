#pragma once

#include <filesystem>

#include <ckpt/target.h>

namespace ckpt {

// Whether the target is a single file, whatever its name.
bool is_single_file(const Target& target);

// Throws InvalidArgument where the name of a destination says something else than what would be
// written there: a folder called x.pt, a torch.save file called x.safetensors.
void check_destination_name(const Target& target, const std::filesystem::path& destination);

}  // namespace ckpt
