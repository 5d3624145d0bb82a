#pragma once

#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/target.h>

namespace ckpt {

// Checks every storage that the chosen files take payload from against its archive's CRC-32, and
// throws Corrupt where one is damaged. For files that an interrupted run has finished: it may have
// ended before it had seen the whole of a storage.
void check_sources(const Target& target, const std::vector<bool>& files, const Checkpoint& source,
                   const ExecuteOptions& options);

}  // namespace ckpt
