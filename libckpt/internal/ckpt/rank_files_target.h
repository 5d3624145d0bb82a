#pragma once

#include <cstdint>

#include <ckpt/checkpoint.h>
#include <ckpt/plain_target.h>

namespace ckpt {

// The ranks that files are written for; 0: as many as in the source.
struct MeshSizes {
  uint64_t shards = 0;  // of HSDP: the ranks that share one replica's tensors
  uint64_t tensor = 0;  // tensor parallel ones; 1: the mesh is FSDP's alone
};

// make_target() with spec.ranks.
Target make_rank_files(const Checkpoint& source, const TargetSpec& spec, MeshSizes sizes);

}  // namespace ckpt
