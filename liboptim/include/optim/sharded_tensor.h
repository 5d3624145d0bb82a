#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ckpt/dtype.h>
#include <optim/layout_export.h>

namespace optim {

// Tensors of megatron.core.dist_checkpointing.mapping in C++, without their data: a tensor is a
// handle whose owner knows what it is.

using Shape = std::vector<int64_t>;
using ReplicaId = std::variant<int64_t, Shape>;  // 0 or all zeros: the main replica
OPTIM_LAYOUT_EXPORT bool is_main_replica(const ReplicaId& replica_id);

// A tensor, known by identity: two handles mean the same tensor when `identity` is equal (the
// address of its TensorImpl). `tensor` keeps it alive and is opaque here.
struct TensorHandle {
  const void* identity = nullptr;
  ckpt::DType dtype = ckpt::DType::Float32;
  Shape shape = {};
  std::shared_ptr<const void> tensor = nullptr;
};

struct FlattenedRange {
  int64_t start = 0, stop = 0;  // elements
  bool operator==(const FlattenedRange&) const = default;
};

struct RankOffset {
  int64_t axis = 0;  // of the global tensor
  int64_t rank = 0;  // which fragment the local tensor is
  int64_t fragments = 1;
};

// The mapping between a local tensor and a global one. Fields as the reference's.
struct OPTIM_LAYOUT_EXPORT ShardedTensor {
  std::string key = {};
  std::optional<TensorHandle> data = {};
  ckpt::DType dtype = ckpt::DType::Float32;
  Shape local_shape = {};  // elements, like all shapes and offsets
  Shape global_shape = {};
  Shape global_offset = {};
  std::optional<Shape> axis_fragmentations = {};
  ReplicaId replica_id = int64_t{0};
  int64_t prepend_axis_num = 0;  // leading axes that the global tensor has and the local has not
  bool allow_shape_mismatch = false;
  std::optional<FlattenedRange> flattened_range = {};

  // Throws Error(InvalidArgument) with the key when dtype, shapes or offsets disagree, and
  // Error(Unsupported) for a flattened_range, which Megatron-Core dropped.
  void validate_metadata_integrity() const;
  bool has_regular_grid() const { return axis_fragmentations.has_value(); }
  ShardedTensor without_data() const;
  Shape local_chunk_offset_in_global() const;  // in chunks; Error(InvalidArgument) off the grid
  Shape max_allowed_chunks() const;            // the reference's; needs a regular grid
};

struct RankOffsetOptions {
  ReplicaId replica_id = int64_t{0};
  int64_t prepend_axis_num = 0;
  bool allow_shape_mismatch = false;
};
OPTIM_LAYOUT_EXPORT ShardedTensor sharded_tensor_from_rank_offsets(
    std::string key, TensorHandle data, std::span<const RankOffset> rank_offsets,
    const RankOffsetOptions& options = {});

}  // namespace optim
