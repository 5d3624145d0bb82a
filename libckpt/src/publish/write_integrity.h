#pragma once

#include <filesystem>

#include <ckpt/execute.h>

#include "publish/store_files.h"

namespace ckpt {

// Writes integrity.json into a folder: the SHA-256 of each of these files in it, to which it is
// added. Throws IoFailure where one is not what was written.
void write_integrity(const std::filesystem::path& folder, const ExecuteOptions& options,
                     StoreFiles& files);

}  // namespace ckpt
