#pragma once

#include <cstddef>
#include <span>

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>

namespace ckpt {

// The bytes of a record of a target whose source is this checkpoint: what would be written.
// out.size() must be record.count_bytes. Throws as Checkpoint::read.
void read_record(const TargetRecord& record, const Checkpoint& source, std::span<std::byte> out);

}  // namespace ckpt
