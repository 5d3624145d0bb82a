#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include <ckpt/archive_builder.h>

#include "format/values/rank_tensor.h"

namespace ckpt {

// The rank of a run that a file is written for.
struct WrittenRank {
  uint64_t rank = 0, ranks = 1;
};

// DTensors of one file, each in the form of one that another rank has saved: its class, its spec
// and its mesh with the numbers of the rank that is written, so that the version of PyTorch that
// wrote the source reads the result.
class RankTensorWriter {
 public:
  RankTensorWriter(ArchiveBuilder& builder, WrittenRank rank) : builder_(builder), rank_(rank) {}

  // `form`: a DTensor of the whole tensor's type and shape; `known`: what it says. Throws
  // Unsupported for other than Shard(0), on a mesh of one dimension or with replicas before it; for
  // a number of ranks that replicas do not divide; for a mesh that says what is not known.
  NodeId add(std::shared_ptr<const TensorEntry> whole, const Value& form, const RankTensor& known);

 private:
  NodeId mesh(const Value& form, const RankTensor& known);

  ArchiveBuilder& builder_;
  WrittenRank rank_;
  std::map<NodeId, NodeId> meshes_;  // that of each form, which tensors share
};

// Forms of PyTorch 2.11, of sources that have none: a mesh ("fsdp",) of one rank, and a DTensor
// that lies on it whole, Shard(0).
NodeId add_mesh_form(ValueTree& tree, std::string_view device_type);
NodeId add_rank_tensor_form(ValueTree& tree, DType dtype, const Extents& shape, NodeId mesh);

// Where the tensor's storage was: "cpu", "cuda:0"; empty: it does not say.
std::string_view device_of(const Value& tensor);
void set_device(ValueTree& tree, NodeId tensor, std::string_view device);

}  // namespace ckpt
