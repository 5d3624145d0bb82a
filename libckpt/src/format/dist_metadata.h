#pragma once

#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/value.h>

namespace ckpt {

// What a DCP .metadata says, checked: chunks lie inside their tensors and cover them, every chunk
// and object has its place, names stay inside the folder. Regions hold indices into `files`.
struct DistMetadata {
  std::vector<std::string> files;
  std::vector<TensorEntry> tensors;
  std::vector<ObjectEntry> objects;
};

// Throws Corrupt with the key; the caller adds the file. Unsupported for transformed (zstd)
// entries.
DistMetadata interpret_dist_metadata(const ValueTree& tree);

}  // namespace ckpt
