#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/export.h>
#include <ckpt/extents.h>
#include <ckpt/value.h>

namespace ckpt {

// A tensor of which a torch.save file holds what one rank had: a DTensor, a ShardedTensor, a flat
// parameter of FSDP. Its local tensors are listed as any others.
struct TensorPart {
  std::string pointer;  // of the DTensor or ShardedTensor; of a flat parameter itself
  // "DTensor, Shard(0) on mesh ('fsdp',) of size 4: this file holds part 1 of 4", escaped.
  std::string words;
  std::optional<Extents> shape;      // of the whole tensor; none where the file does not say it
  bool is_whole = false;             // the file holds all of it: replicated, or on one rank
  std::vector<std::string> tensors;  // keys of its local tensors, as tensors_in() gives them
};

// In the order of the file; one inside another is left out. What torch of another version says
// otherwise is named with fewer words, never left out. Pointers start at `root`.
CKPT_EXPORT std::vector<TensorPart> parts_in(const Value& root);

}  // namespace ckpt
