#pragma once

#include <span>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/target.h>

namespace ckpt {

// Checks every storage that some pieces take payload from against its archive's CRC-32, and throws
// Corrupt where one is damaged. For pieces that an interrupted run has finished: it may have ended
// before it had seen the whole of a storage.
void check_sources(const Target& target, const Plan& plan, std::span<const Piece> pieces,
                   const Checkpoint& source, const ExecuteOptions& options);

}  // namespace ckpt
