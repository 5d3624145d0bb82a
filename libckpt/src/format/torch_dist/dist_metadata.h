#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/folder.h>
#include <ckpt/limits.h>
#include <ckpt/value_tree.h>

#include "format/location/location.h"

namespace ckpt {

// What a DCP .metadata says, checked: chunks lie inside their tensors and cover them, every chunk
// and object has its place, names stay inside the folder. Regions hold indices into `files`.
struct DistMetadata {
  std::vector<std::string> files;
  std::vector<TensorEntry> tensors;
  std::vector<ObjectEntry> objects;
  // The Metadata object without what the catalog has: the entries of state_dict_metadata are None,
  // storage_data is empty.
  ValueTree rest;
  // [file] where the last of its regions ends, if it is known that each region of a file starts
  // where the one before it ends, or later; else empty.
  std::vector<uint64_t> region_ends = {};
};

// Throws Corrupt with the key; the caller adds the file. Unsupported for transformations other than
// zstd. `is_part`: of a rank's own __R.metadata, whose chunks need not cover their tensors.
DistMetadata interpret_dist_metadata(const ValueTree& tree, bool is_part = false);

// What TensorProperties' state says: the element type, where that is known and the layout is
// torch.strided.
std::optional<DType> strided_dtype(const Value& state);

// A tuple (dtype, layout, requires_grad, ...) as TensorProperties' state, or a dict of the same.
bool requires_grad_of(const Value& state);

// A name of a file in the folder, and of nothing else.
bool is_plain_file_name(std::string_view name);

// Reads a .metadata as real writers make it, in one pass that keeps little more than the catalog
// (docs/performance.md). nullopt where anything is not as expected, be it uncommon or
// malformed: the general reader then finds out which, so this one accepts nothing that the general
// one refuses. Throws Corrupt, with the key, where chunks do not tile their tensor.
std::optional<DistMetadata> stream_dist_metadata(const RandomAccess& file, const Limits& limits);

bool is_torch_dist_folder(const Folder& source, Location& location);
Contents read_torch_dist_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
