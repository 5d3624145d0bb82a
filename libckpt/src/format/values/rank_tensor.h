#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ckpt/document.h>

namespace ckpt {

// How a tensor lies along one dimension of a mesh.
struct MeshPlacement {
  bool is_sharded = false;
  uint64_t dim = 0, split_factor = 1;  // 1: not strided
};

// What one rank's file holds of a tensor that several ranks hold: a DTensor, or a ShardedTensor.
struct RankTensor {
  struct Part {
    Box box;                         // in the whole tensor
    Value local;                     // a tensor of the box's sizes
    std::optional<Box> inside = {};  // where it lies in `local`, if that has more
  };
  DType dtype = DType::Float32;
  Extents shape;                          // of the whole
  std::vector<Part> parts;                // without elements: none
  std::optional<int64_t> rank;            // that saved it, as it says itself
  std::optional<uint64_t> rank_count;     // of its mesh
  std::vector<MeshPlacement> placements;  // of a DTensor, by dimension of its mesh; else none
  Extents mesh;
  std::optional<Extents> coordinates;  // of the rank in it
};

// What the rank at these coordinates has of it. Throws Unsupported for a strided placement whose
// split factor the mesh does not have.
Box box_on_mesh(const Extents& shape, const std::vector<MeshPlacement>& placements,
                const Extents& mesh, const Extents& coordinates);

// nullopt where the value is no such tensor. Throws Unsupported, with the reason, for one that is
// placed in a way that is not known, and Corrupt where it contradicts itself.
std::optional<RankTensor> as_rank_tensor(const Value& value);

}  // namespace ckpt
