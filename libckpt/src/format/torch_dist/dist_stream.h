#pragma once

#include <optional>

#include <ckpt/limits.h>

#include <ckpt/random_access.h>
#include "format/torch_dist/dist_metadata.h"

namespace ckpt {

// Reads a .metadata as real writers make it, in one pass that keeps little more than the catalog
// (docs/performance.md). nullopt where anything is not as expected, be it uncommon or
// malformed: the general reader then finds out which, so this one accepts nothing that the general
// one refuses. Throws Corrupt, with the key, where chunks do not tile their tensor.
std::optional<DistMetadata> stream_dist_metadata(const RandomAccess& file, const Limits& limits);

}  // namespace ckpt
