#pragma once

#include <filesystem>

#include <ckpt/convert.h>

namespace ckpt {

// Throws InvalidArgument where options ask for something that the target's format cannot hold.
void check_store_options(const Target& target, const ConvertOptions& options);

// What is done to a torch_dist folder once all of it lies in the staging: compression, and the
// manifest of hashes. Corrects the plan's sizes.
void finish_store(const std::filesystem::path& staging, const ConvertOptions& options, Plan& plan);

}  // namespace ckpt
