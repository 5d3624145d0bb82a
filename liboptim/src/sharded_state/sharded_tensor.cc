#include <optim/sharded_tensor.h>

#include <algorithm>
#include <utility>

#include <ckpt/error.h>

#include "sharded_state/refuse.h"

namespace optim {
namespace {

void require(bool right, const ShardedTensor& tensor, std::string_view problem) {
  if (!right) refuse(tensor.key, std::string(problem));
}

int64_t product(std::string_view key, int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) refuse(key, "a global size exceeds 63 bits");
  return result;
}

// Axes of the local tensor within the global one start here.
size_t first_local_axis(const ShardedTensor& tensor) {
  const size_t axes = tensor.global_shape.size();
  require(tensor.global_offset.size() == axes, tensor,
          "the global offset and the global shape differ in their number of dimensions");
  require(
      tensor.prepend_axis_num >= 0 && static_cast<size_t>(tensor.prepend_axis_num) <= axes &&
          tensor.local_shape.size() == axes - static_cast<size_t>(tensor.prepend_axis_num),
      tensor,
      "the local shape and the prepended axes do not add up to the dimensions of the global shape");
  return axes - tensor.local_shape.size();
}

}  // namespace

bool is_main_replica(const ReplicaId& replica_id) {
  if (const auto* number = std::get_if<int64_t>(&replica_id)) return *number == 0;
  return std::ranges::all_of(std::get<Shape>(replica_id), [](int64_t part) { return part == 0; });
}

void ShardedTensor::validate_metadata_integrity() const {
  if (data) {
    require(data->dtype == dtype, *this, "the dtype of the data differs from the declared one");
    require(flattened_range || data->shape == local_shape, *this,
            "the shape of the data differs from the local shape");
  }
  const size_t first = first_local_axis(*this);
  for (size_t axis = 0; axis_fragmentations && axis < local_shape.size(); ++axis) {
    const int64_t size = local_shape[axis];
    require(size == 0 || global_offset[first + axis] % size == 0, *this,
            "on a regular grid a global offset must be a multiple of the local size");
  }
  if (!flattened_range) return;
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key},
                    "flattened_range is not supported, as in Megatron-Core since 0.14");
}

ShardedTensor ShardedTensor::without_data() const {
  ShardedTensor copy = *this;
  copy.data.reset();
  return copy;
}

Shape ShardedTensor::local_chunk_offset_in_global() const {
  const size_t first = first_local_axis(*this);
  Shape offset(global_offset.begin(), global_offset.begin() + static_cast<ptrdiff_t>(first));
  for (size_t axis = 0; axis < local_shape.size(); ++axis) {
    const int64_t size = local_shape[axis];
    require(size > 0 && global_offset[first + axis] % size == 0, *this,
            "the tensor does not lie on a regular grid");
    offset.push_back(global_offset[first + axis] / size);
  }
  return offset;
}

Shape ShardedTensor::max_allowed_chunks() const {
  require(axis_fragmentations && axis_fragmentations->size() == global_shape.size(), *this,
          "needs the fragmentation of every axis");
  Shape chunks;
  for (size_t axis = 0; axis < global_shape.size(); ++axis) {
    const int64_t fragments = (*axis_fragmentations)[axis];
    require(fragments > 0 && (allow_shape_mismatch || global_shape[axis] % fragments == 0), *this,
            "the size of an axis is not divisible by its fragmentation");
    chunks.push_back(global_shape[axis] / fragments);
  }
  return chunks;
}

ShardedTensor sharded_tensor_from_rank_offsets(std::string key, TensorHandle data,
                                               std::span<const RankOffset> rank_offsets,
                                               const RankOffsetOptions& options) {
  if (options.prepend_axis_num < 0) refuse(key, "prepend_axis_num is negative");
  const auto first = static_cast<size_t>(options.prepend_axis_num);
  const size_t axes = first + data.shape.size();
  ShardedTensor tensor{.key = std::move(key),
                       .dtype = data.dtype,
                       .local_shape = data.shape,
                       .global_shape = Shape(first, 1),
                       .global_offset = Shape(axes, 0),
                       .axis_fragmentations = Shape(axes, 1),
                       .replica_id = options.replica_id,
                       .prepend_axis_num = options.prepend_axis_num,
                       .allow_shape_mismatch = options.allow_shape_mismatch};
  tensor.global_shape.insert(tensor.global_shape.end(), data.shape.begin(), data.shape.end());
  tensor.data = std::move(data);
  for (const RankOffset& offset : rank_offsets) {
    const bool exists = offset.axis >= 0 && static_cast<size_t>(offset.axis) < axes;
    require(exists && offset.rank >= 0 && offset.rank < offset.fragments, tensor,
            "a rank offset names an axis or a rank that does not exist");
    const auto axis = static_cast<size_t>(offset.axis);
    const int64_t size = axis < first ? 1 : tensor.local_shape[axis - first];
    tensor.global_shape[axis] = product(tensor.key, offset.fragments, size);
    tensor.global_offset[axis] = product(tensor.key, offset.rank, size);
    (*tensor.axis_fragmentations)[axis] = offset.fragments;
  }
  tensor.validate_metadata_integrity();
  return tensor;
}

}  // namespace optim
