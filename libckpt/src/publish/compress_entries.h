#pragma once

#include <filesystem>

#include <ckpt/execute.h>

#include "publish/store_files.h"

namespace ckpt {

// Compresses each entry of the .distcp files of a DCP folder that execute() has just written, as
// PyTorch's ZStandard extension does, and writes its .metadata anew. How long a compressed entry is
// shows only when it is made, so offsets are given in the order of the entries, one file at a time.
// Needs room for one file more. `level`: ZstdCompressor::kLevelMin to kLevelMax. `files`: what was
// written; then, what lies there now. Throws IoFailure where the device gives back something else.
void compress_entries(const std::filesystem::path& folder, int level, const ExecuteOptions& options,
                      StoreFiles& files);

}  // namespace ckpt
