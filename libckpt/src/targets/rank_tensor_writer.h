#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ckpt/archive_builder.h>

#include "format/values/rank_tensor.h"
#include "targets/rank_mesh_writer.h"

namespace ckpt {

// The part of FSDP1's tensors that a rank has, where its files are cut as `known` is.
struct WrittenPart {
  uint64_t part = 0, parts = 1;
};
WrittenPart written_part(const RankTensor& known, WrittenRank rank);

// DTensors and ShardedTensors of one file, each in the form of one that another rank has saved: its
// class, its spec and its mesh with the numbers of the rank that is written, so that the version of
// PyTorch that wrote the source reads the result.
class RankTensorWriter {
 public:
  RankTensorWriter(ArchiveBuilder& builder, WrittenRank rank)
      : builder_(builder), rank_(rank), meshes_(builder, rank) {}

  // `form`: such a tensor of the whole tensor's type and shape; `known`: what it says. Throws as
  // RankMeshWriter::place() does, and for a ShardedTensor that not all ranks share.
  NodeId add(std::shared_ptr<const TensorEntry> whole, const Value& form, const RankTensor& known);

 private:
  NodeId state_of_sharded(std::shared_ptr<const TensorEntry> whole, const Value& state);

  ArchiveBuilder& builder_;
  WrittenRank rank_;
  RankMeshWriter meshes_;
};

// A form of PyTorch 2.11, for a source that has none: it lies on its mesh whole, Shard(0).
NodeId add_rank_tensor_form(ValueTree& tree, DType dtype, const Extents& shape, NodeId mesh);

// Where the tensor's storage was: "cpu", "cuda:0"; empty: it does not say.
std::string_view device_of(const Value& tensor);
void set_device(ValueTree& tree, NodeId tensor, std::string_view device);

}  // namespace ckpt
