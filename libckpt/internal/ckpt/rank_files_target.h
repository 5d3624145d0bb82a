#pragma once

#include <cstdint>

#include <ckpt/checkpoint.h>
#include <ckpt/plain_target.h>

namespace ckpt {

// Whether the ranks that files are written for cut tensors as the source's tensor parallel ranks
// do, or are FSDP's alone.
enum class TensorRanks : uint8_t { Kept, Dropped };

// make_target() with spec.ranks.
Target make_rank_files(const Checkpoint& source, const TargetSpec& spec, TensorRanks tensor_ranks);

}  // namespace ckpt
