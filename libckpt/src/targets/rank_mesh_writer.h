#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/rank_files_target.h>

#include "format/values/rank_tensor.h"

namespace ckpt {

// The rank of a run that a file is written for.
struct WrittenRank {
  uint64_t rank = 0, ranks = 1, ranks_of_source = 1;
  MeshSizes sizes = {};
};

// A copy of an object, or of its state (a dict, or a tuple of them), with other values of
// attributes that it has.
using Replaced = std::map<std::string_view, NodeId>;
NodeId object_with(ValueTree& tree, const Value& object, const Replaced& values);
NodeId state_with(ValueTree& tree, const Value& state, const Replaced& values);

using Attributes = std::vector<std::pair<std::string_view, NodeId>>;
NodeId add_dict(ValueTree& tree, const Attributes& items);
NodeId add_built(ValueTree& tree, std::string_view module, std::string_view name,
                 const Attributes& state);
NodeId add_numbers(ValueTree& tree, Kind kind, const Extents& numbers);

[[noreturn]] void refuse_rank_tensor(std::string problem);

// Where a tensor lies on the mesh that is written for it.
struct PlaceOnMesh {
  NodeId mesh = kNoNode;
  Extents sizes, coordinates;
  // From the first on, those of FSDP: its shards, or replicas and shards. Tensor parallel ranks
  // are behind them.
  size_t data_dims = 1;
};

struct RankGrid;

// Meshes of one file, each in the form of one that another rank has saved, of torch 2.5 to 2.15:
// the first dimension of all ranks' mesh has another size, others have where MeshSizes says so, and
// where tensor parallel ranks are dropped, none follows FSDP's.
class RankMeshWriter {
 public:
  RankMeshWriter(ArchiveBuilder& builder, WrittenRank rank) : builder_(builder), rank_(rank) {}

  // Throws Unsupported for other than Shard(0) by FSDP, for a number of ranks that the dimensions
  // that stay do not divide, and for a mesh that says what is not known.
  PlaceOnMesh place(const Value& mesh, const RankTensor& known);

 private:
  NodeId write(const Value& form, const RankGrid& grid, const std::vector<size_t>& dims);

  ArchiveBuilder& builder_;
  WrittenRank rank_;
  std::map<NodeId, NodeId> meshes_;  // that of each form, which tensors share
  size_t data_dims_ = 0;             // of the tensors so far
};

// That of one rank, ("fsdp",), as torch 2.11 has it.
NodeId add_mesh_form(ValueTree& tree, std::string_view device_type);

}  // namespace ckpt
