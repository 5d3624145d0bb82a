// Source: torch/distributed/tensor/placement_types.py and _utils.py,
// fsdp/_fully_shard/_fsdp_param.py of PyTorch 2.11; torch/distributed/_shard/sharded_tensor/api.py.
#include "format/values/rank_tensor.h"

#include <algorithm>

#include <ckpt/error.h>

#include "format/values/torch_values.h"

namespace ckpt {
namespace {

constexpr size_t kMeshDimsMax = 16;

[[noreturn]] void refuse(std::string problem, ErrorCode code = ErrorCode::Unsupported) {
  throw Error(code, {}, std::move(problem));
}

[[noreturn]] void refuse_placement(const Value& placement) {
  refuse("is placed as " + placement_text(placement) + ", which is not read");
}

uint64_t number_at(const Value& placement, const char* name) {
  const auto value = attribute_of(placement, name);
  if (!value || !value->is(Kind::Int) || value->as_int() < 0) refuse_placement(placement);
  return static_cast<uint64_t>(value->as_int());
}

MeshPlacement read_placement(const Value& placement, size_t dims) {
  const std::string name = class_name_of(placement);
  MeshPlacement read;
  if (name == "Replicate") return read;
  if (name != "Shard" && name != "_StridedShard") refuse_placement(placement);
  read.is_sharded = true;
  read.dim = number_at(placement, "dim");
  if (name == "_StridedShard") read.split_factor = number_at(placement, "split_factor");
  if (read.dim >= dims) {
    refuse("is placed as " + placement_text(placement) + ", but has " + std::to_string(dims) +
               " dimensions",
           ErrorCode::Corrupt);
  }
  return read;
}

// The dimensions of the mesh that cut a dimension of the tensor, in the order in which they do: a
// strided one cuts what those behind it, as many ranks as its split factor says, have left.
std::vector<size_t> cutting_order(const std::vector<MeshPlacement>& placements, const Extents& mesh,
                                  uint64_t dim) {
  std::vector<size_t> order;
  for (size_t m = placements.size(); m-- > 0;) {
    const MeshPlacement& placement = placements[m];
    if (!placement.is_sharded || placement.dim != dim) continue;
    uint64_t product = 1;
    size_t place = 0;
    while (product < placement.split_factor && place < order.size()) {
      product *= mesh[order[place++]];
    }
    if (product != placement.split_factor) {
      refuse("is cut by a strided placement of split factor " +
             std::to_string(placement.split_factor) + ", which its mesh does not have");
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), m);
  }
  return order;
}

// As torch.chunk: equal parts, of which the last are shorter or empty.
void cut(uint64_t count, uint64_t index, uint64_t& offset, uint64_t& size) {
  const uint64_t each = size / count + (size % count != 0);
  const uint64_t begin = std::min(size, each * index);
  offset += begin;
  size = std::min(each, size - begin);
}

void add_part(Box box, const Value& local, RankTensor& tensor) {
  if (element_count(box.sizes) == 0) return;
  const auto view = as_tensor(local);
  if (!view || as_wrapped(local)) refuse("its part is not a plain tensor");
  if (view->shape != box.sizes || view->dtype != tensor.dtype) {
    refuse("its part does not have the shape and type that its placements give");
  }
  tensor.parts.push_back({std::move(box), local});
}

void require_mesh(const RankMesh& mesh, size_t placements) {
  const bool has_sizes = mesh.shape && !mesh.shape->empty() && mesh.shape->size() == placements &&
                         placements <= kMeshDimsMax;
  const bool are_positive = has_sizes && std::ranges::all_of(*mesh.shape, [](uint64_t n) {
                              return n > 0 && n < 1 << 20;
                            });
  if (!are_positive) refuse("its mesh of ranks has no sizes that are read");
  if (!mesh.coordinates) return;
  bool are_inside = mesh.coordinates->size() == placements;
  for (size_t m = 0; are_inside && m < placements; ++m) {
    are_inside = (*mesh.coordinates)[m] < (*mesh.shape)[m];
  }
  if (!are_inside) refuse("its rank lies outside of its mesh", ErrorCode::Corrupt);
}

void read_dtensor(const WrappedTensor& wrapped, RankTensor& tensor) {
  const auto spec = attribute_in(wrapped.state, "_spec");
  const auto local = attribute_in(wrapped.state, "_local_tensor");
  const auto mesh_value = spec ? attribute_of(*spec, "mesh") : std::nullopt;
  const auto placed = spec ? attribute_of(*spec, "placements") : std::nullopt;
  if (!local || !mesh_value || !placed || !placed->is(Kind::Tuple)) {
    refuse("is a DTensor of a form that is not read");
  }
  const RankMesh mesh = read_mesh(*mesh_value);
  require_mesh(mesh, placed->size());
  for (size_t i = 0; i < placed->size(); ++i) {
    tensor.placements.push_back(read_placement((*placed)[i], tensor.shape.size()));
  }
  tensor.rank = mesh.rank;
  tensor.rank_count = element_count(*mesh.shape);
  tensor.mesh = *mesh.shape;
  tensor.coordinates = mesh.coordinates;
  if (!mesh.coordinates) return;  // a rank that is not in the mesh
  add_part(box_on_mesh(tensor.shape, tensor.placements, *mesh.shape, *mesh.coordinates), *local,
           tensor);
}

// Of its ShardedTensor.ProcessGroupState: its group of ranks is a mesh of one dimension.
void read_process_group(const Value& state, RankTensor& tensor) {
  const auto number = [&](const char* name) {
    const auto value = attribute_of(state, name);
    return value && value->is(Kind::Int) && value->as_int() >= 0 ? std::optional(value->as_int())
                                                                 : std::nullopt;
  };
  const auto rank = number("local_rank"), ranks = number("local_world_size");
  if (!rank || !ranks || *rank >= *ranks) return;
  tensor.rank = number("global_rank");
  if (const auto all = number("global_world_size")) tensor.rank_count = *all;
  tensor.mesh = {static_cast<uint64_t>(*ranks)};
  tensor.coordinates = Extents{static_cast<uint64_t>(*rank)};
}

// Its __getstate__: (local shards, metadata, process group, ...).
void read_sharded_tensor(const WrappedTensor& wrapped, RankTensor& tensor) {
  const Value& state = wrapped.state;
  if (state.is(Kind::Tuple) && state.size() > 2) read_process_group(state[2], tensor);
  if (!state.is(Kind::Tuple) || state.size() < 2 || !state[0].is(Kind::List)) {
    refuse("is a ShardedTensor of a form that is not read");
  }
  for (size_t i = 0; i < state[0].size(); ++i) {
    const auto metadata = attribute_of(state[0][i], "metadata");
    const auto local = attribute_of(state[0][i], "tensor");
    const auto offsets = sizes_at(metadata, "shard_offsets");
    const auto sizes = sizes_at(metadata, "shard_sizes");
    if (!local || !offsets || !sizes || offsets->size() != sizes->size()) {
      refuse("is a ShardedTensor of a form that is not read");
    }
    add_part({*offsets, *sizes}, *local, tensor);
  }
}

}  // namespace

Box box_on_mesh(const Extents& shape, const std::vector<MeshPlacement>& placements,
                const Extents& mesh, const Extents& coordinates) {
  Box box = whole(shape);
  for (uint64_t dim = 0; dim < shape.size(); ++dim) {
    for (const size_t m : cutting_order(placements, mesh, dim)) {
      cut(mesh[m], coordinates[m], box.offsets[dim], box.sizes[dim]);
    }
  }
  return box;
}

std::optional<RankTensor> as_rank_tensor(const Value& value) {
  const auto wrapped = as_wrapped(value);
  if (!wrapped || !wrapped->type.module().starts_with("torch.distributed.")) return std::nullopt;
  const std::string_view name = wrapped->type.name();
  if (name != "DTensor" && name != "ShardedTensor") return std::nullopt;
  const bool has_args = wrapped->args.is(Kind::Tuple) && wrapped->args.size() > 2;
  const auto dtype = has_args ? as_dtype(wrapped->args[1]) : std::nullopt;
  const auto shape = has_args ? sizes_in(wrapped->args[2]) : std::nullopt;
  if (!dtype || !shape) refuse("has no type or shape that is read");
  RankTensor tensor;
  tensor.dtype = *dtype;
  tensor.shape = *shape;
  (name == "DTensor" ? read_dtensor : read_sharded_tensor)(*wrapped, tensor);
  return tensor;
}

}  // namespace ckpt
