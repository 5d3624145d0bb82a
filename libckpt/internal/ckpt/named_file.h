#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <ckpt/export.h>

namespace ckpt {

// All of a small file that a user names beside a checkpoint: recorded hashes, rules, settings. A
// pipe is read to its end where somebody has it open for writing. Throws NotFound; IoFailure for a
// folder, a device, a pipe that nobody writes to, before anything is read; Unsupported for more
// than `bytes_max`.
CKPT_EXPORT std::string read_named_file(const std::filesystem::path& path, uint64_t bytes_max);

}  // namespace ckpt
