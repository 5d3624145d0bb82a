// Source: torch/distributed/tensor/_dtensor_spec.py of PyTorch 2.11 and 2.15;
// fsdp/_shard_utils.py and _shard/sharded_tensor of 2.11.
#include "targets/rank_tensor_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "format/values/torch_values.h"

namespace ckpt {
namespace {

std::optional<Value> storage_id_of(const Value& tensor) {
  if (!tensor.is(Kind::Object) || tensor.args().size() == 0) return std::nullopt;
  const Value first = tensor.args()[0];
  if (first.is(Kind::Object)) return storage_id_of(first);  // of a Parameter
  const bool is_storage = first.is(Kind::PersistentId) && first.persistent_id().size() >= 5;
  return is_storage ? std::optional(first) : std::nullopt;
}

constexpr const char* kShardModule = "torch.distributed._shard.sharded_tensor.shard";
constexpr const char* kShardingModule = "torch.distributed._shard.sharding_spec";

// The metadata of one part, on the rank of that number.
NodeId add_shard_metadata(ValueTree& tree, const Value& form, const Box& box, NodeId placement) {
  return object_with(tree, form,
                     {{"shard_offsets", add_numbers(tree, Kind::List, box.offsets)},
                      {"shard_sizes", add_numbers(tree, Kind::List, box.sizes)},
                      {"placement", placement}});
}

constexpr const char* kSpecModule = "torch.distributed.tensor._dtensor_spec";

NodeId add_shard_of_rows(ValueTree& tree, std::string_view module) {
  return add_built(tree, module, "Shard", {{"dim", tree.integer(0)}});
}

// That rows are cut over one dimension of the mesh.
NodeId add_order_of_rows(ValueTree& tree, size_t mesh_dim) {
  const NodeId dims = tree.tuple({tree.integer(static_cast<int64_t>(mesh_dim))});
  const NodeId entry =
      tree.object(Construction::NewObj, tree.global(kSpecModule, "ShardOrderEntry"),
                  tree.tuple({tree.integer(0), dims}));
  return tree.tuple({entry});
}

NodeId add_spec_form(ValueTree& tree, NodeId dtype, const Extents& shape, NodeId mesh) {
  const NodeId shard = add_shard_of_rows(tree, "torch.distributed.tensor.placement_types");
  const NodeId meta =
      tree.object(Construction::NewObj, tree.global(kSpecModule, "TensorMeta"),
                  tree.tuple({add_size(tree, shape),
                              add_numbers(tree, Kind::Tuple, row_major_strides(shape)), dtype}));
  return add_built(tree, kSpecModule, "DTensorSpec",
                   {{"mesh", mesh},
                    {"placements", tree.tuple({shard})},
                    {"tensor_meta", meta},
                    {"shard_order", add_order_of_rows(tree, 0)},
                    {"use_strided_shard_as_shard_order", tree.boolean(false)},
                    {"_hash", tree.none()}});
}

// Of a tensor that is no longer cut by tensor parallel ranks.
void replace_placements(ValueTree& tree, const Value& spec, size_t kept, Replaced& values) {
  const Value placed = *attribute_of(spec, "placements");
  std::vector<NodeId> placements;
  for (size_t i = 0; i + 1 < kept; ++i) placements.push_back(tree.copy(placed[i]));
  placements.push_back(add_shard_of_rows(tree, placed[kept - 1].callable().module()));
  values.emplace("placements", tree.sequence(Kind::Tuple, placements));
  values.emplace("shard_order", add_order_of_rows(tree, kept - 1));
  values.emplace("use_strided_shard_as_shard_order", tree.boolean(false));
}

struct SplitFactor {
  size_t placement = 0;
  uint64_t factor = 1;
};

// Of a tensor that other tensor parallel ranks cut along the same dimension.
void replace_split_factor(ValueTree& tree, const Value& spec, SplitFactor split, Replaced& values) {
  const Value placed = *attribute_of(spec, "placements");
  std::vector<NodeId> placements;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (i != split.placement) {
      placements.push_back(tree.copy(placed[i]));
    } else if (attribute_of(placed[i], "split_factor")) {
      const NodeId factor = tree.integer(static_cast<int64_t>(split.factor));
      placements.push_back(object_with(tree, placed[i], {{"split_factor", factor}}));
    } else {
      refuse_rank_tensor("is not cut by tensor parallel ranks, of which the source has one");
    }
  }
  values.emplace("placements", tree.sequence(Kind::Tuple, placements));
}

}  // namespace

NodeId add_rank_tensor_form(ValueTree& tree, DType dtype, const Extents& shape, NodeId mesh) {
  const NodeId type = tree.global("torch.distributed.tensor", "DTensor");
  const NodeId element = tree.global("torch", name(dtype));
  const NodeId layout =
      tree.object(Construction::Reduce, tree.global("torch.serialization", "_get_layout"),
                  tree.tuple({tree.str("torch.strided")}));
  const NodeId device = tree.object(Construction::Reduce, tree.global("torch", "device"),
                                    tree.tuple({tree.str("cpu")}));
  const NodeId args = tree.tuple({type, element, add_numbers(tree, Kind::Tuple, shape),
                                  add_numbers(tree, Kind::Tuple, row_major_strides(shape)),
                                  tree.integer(0), layout, device, tree.boolean(false)});
  const NodeId slots = add_dict(tree, {{"_local_tensor", add_tensor(tree, dtype, shape, "0")},
                                       {"_spec", add_spec_form(tree, element, shape, mesh)}});
  return tree.object(Construction::Reduce, tree.global("torch._tensor", "_rebuild_from_type_v2"),
                     tree.tuple({tree.global("torch._utils", "_rebuild_wrapper_subclass"), type,
                                 args, tree.tuple({tree.none(), slots})}));
}

WrittenPart written_part(const RankTensor& known, WrittenRank rank) {
  const bool has_replicas = known.placements.size() > 1;
  const uint64_t shards = rank.sizes.shards != 0 ? rank.sizes.shards : known.mesh.back();
  const uint64_t parts = has_replicas ? shards : rank.ranks;
  return {rank.rank % parts, parts};
}

// As _create_chunk_sharded_tensor() makes it: a part for each rank that has elements.
NodeId RankTensorWriter::state_of_sharded(std::shared_ptr<const TensorEntry> whole,
                                          const Value& state) {
  const auto all = attribute_of(state[1], "shards_metadata");
  const bool is_known = state.size() == 5 && all && all->is(Kind::List) && all->size() > 0;
  if (!is_known || whole->shape.empty() || whole->shape[0] == 0) {
    refuse_rank_tensor("is a ShardedTensor of a form that is not written");
  }
  ValueTree& tree = builder_.tree();
  std::vector<NodeId> metadata, placements, local;
  for (uint64_t part = 0; part < rank_.ranks; ++part) {
    const Box box = box_on_mesh(whole->shape, {{.is_sharded = true}}, {rank_.ranks}, {part});
    if (box.sizes[0] == 0) break;
    const Value form = (*all)[part % all->size()];
    const auto placement = attribute_of(form, "placement");
    if (!placement) refuse_rank_tensor("is a ShardedTensor of a form that is not written");
    placements.push_back(
        object_with(tree, *placement, {{"_rank", tree.integer(static_cast<int64_t>(part))}}));
    metadata.push_back(add_shard_metadata(tree, form, box, placements.back()));
    if (part != rank_.rank) continue;
    const NodeId tensor = builder_.add_tensor(whole->dtype, box.sizes, TensorSource{whole, box});
    const auto of_form = state[0].size() > 0 ? attribute_of(state[0][0], "tensor") : std::nullopt;
    if (of_form) set_device(tree, tensor, device_of(*of_form));
    local.push_back(
        tree.object(Construction::NewObj, tree.global(kShardModule, "Shard"), tree.tuple({})));
    const NodeId own = add_shard_metadata(tree, form, box, placements.back());
    tree.set_state(local[0], tree.tuple({tree.none(),
                                         add_dict(tree, {{"tensor", tensor}, {"metadata", own}})}));
  }
  const auto number = [&](uint64_t n) { return tree.integer(static_cast<int64_t>(n)); };
  const NodeId group = object_with(tree, state[2],
                                   {{"local_rank", number(rank_.rank)},
                                    {"global_rank", number(rank_.rank)},
                                    {"local_world_size", number(rank_.ranks)},
                                    {"global_world_size", number(rank_.ranks)}});
  const NodeId shards = tree.sequence(Kind::List, metadata);
  const std::string module = kShardingModule;
  const NodeId spec =
      metadata.size() > 1
          ? add_built(
                tree, module + ".chunk_sharding_spec", "ChunkShardingSpec",
                {{"dim", tree.integer(0)}, {"placements", tree.sequence(Kind::List, placements)}})
          : add_built(tree, module + ".api", "EnumerableShardingSpec", {{"shards", shards}});
  return tree.tuple({tree.sequence(Kind::List, local),
                     object_with(tree, state[1], {{"shards_metadata", shards}}), group, spec,
                     tree.copy(state[4])});
}

NodeId RankTensorWriter::add(std::shared_ptr<const TensorEntry> whole, const Value& form,
                             const RankTensor& known) {
  const auto wrapped = as_wrapped(form);
  const auto strides = wrapped->args.size() > 3 ? sizes_in(wrapped->args[3]) : std::nullopt;
  if (strides != row_major_strides(known.shape)) refuse_rank_tensor("is not stored row by row");
  ValueTree& tree = builder_.tree();
  const Value args = form.args();
  const auto rebuilt = [&](NodeId state) {
    return tree.object(
        form.construction(), tree.copy(form.callable()),
        tree.tuple({tree.copy(args[0]), tree.copy(args[1]), tree.copy(args[2]), state}));
  };
  if (known.placements.empty()) {
    if (known.mesh != Extents{known.rank_count.value_or(0)} || rank_.sizes.shards != 0) {
      refuse_rank_tensor("is a ShardedTensor that not all ranks share");
    }
    return rebuilt(state_of_sharded(std::move(whole), wrapped->state));
  }
  const Value spec = *attribute_in(wrapped->state, "_spec");
  const PlaceOnMesh place = meshes_.place(*attribute_of(spec, "mesh"), known);
  std::vector<MeshPlacement> placements = known.placements;
  placements.resize(place.sizes.size());
  const bool is_cut_less = placements.size() < known.placements.size();
  MeshPlacement& of_shards = placements[place.data_dims - 1];
  of_shards.split_factor = 1;
  for (size_t i = place.data_dims; i < placements.size(); ++i) {
    if (placements[i].is_sharded && placements[i].dim == 0) {
      of_shards.split_factor *= place.sizes[i];
    }
  }
  const Box box = box_on_mesh(known.shape, placements, place.sizes, place.coordinates);
  // PyTorch gives such a part another shape.
  if (rank_.sizes.tensor > 1 &&
      std::ranges::find(box.sizes.begin() + 1, box.sizes.end(), 0) != box.sizes.end()) {
    refuse_rank_tensor("has too few columns for " + std::to_string(rank_.sizes.tensor) +
                       " tensor parallel ranks");
  }
  const NodeId local =
      builder_.add_tensor(known.dtype, box.sizes, TensorSource{std::move(whole), box});
  set_device(tree, local, device_of(*attribute_in(wrapped->state, "_local_tensor")));
  Replaced of_spec{{"mesh", place.mesh}};
  if (is_cut_less) {
    replace_placements(tree, spec, place.data_dims, of_spec);
  } else if (of_shards.split_factor != known.placements[place.data_dims - 1].split_factor) {
    replace_split_factor(tree, spec, {place.data_dims - 1, of_shards.split_factor}, of_spec);
  }
  if (attribute_of(spec, "_hash")) of_spec.emplace("_hash", tree.none());
  const Replaced of_tensor{{"_local_tensor", local}, {"_spec", object_with(tree, spec, of_spec)}};
  return rebuilt(state_with(tree, wrapped->state, of_tensor));
}

std::string_view device_of(const Value& tensor) {
  const auto storage = storage_id_of(tensor);
  const bool says = storage && storage->persistent_id()[3].is(Kind::Str);
  return says ? storage->persistent_id()[3].text() : std::string_view();
}

void set_device(ValueTree& tree, NodeId tensor, std::string_view device) {
  const auto storage = storage_id_of(tree.value(tensor));
  if (device.empty() || !storage) return;
  const Value id = storage->persistent_id();
  std::vector<NodeId> parts;
  for (size_t i = 0; i < id.size(); ++i) parts.push_back(id[i].id());
  parts[3] = tree.str(device);
  tree.set_persistent_id(storage->id(), tree.sequence(Kind::Tuple, parts));
}

}  // namespace ckpt
