// Source: torch/distributed/device_mesh.py and tensor/_dtensor_spec.py of PyTorch 2.11, and what
// 2.5 to 2.8 called the same.
#include "targets/rank_tensor_writer.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

using Replaced = std::map<std::string_view, NodeId>;

[[noreturn]] void refuse(std::string problem) {
  throw Error(ErrorCode::Unsupported, {}, std::move(problem),
              "--to torch_dist holds it for any number of ranks");
}

// An object's state, a dict or a tuple of them, with other values of attributes that it has.
NodeId state_with(ValueTree& tree, const Value& state, const Replaced& values) {
  if (state.is(Kind::Tuple)) {
    std::vector<NodeId> parts;
    for (size_t i = 0; i < state.size(); ++i) parts.push_back(state_with(tree, state[i], values));
    return tree.sequence(Kind::Tuple, parts);
  }
  if (!state.is(Kind::Dict)) return tree.copy(state);
  const NodeId made = tree.dict();
  for (const auto& [name, value] : items_of(state)) {
    const auto found = values.find(name.is(Kind::Str) ? name.text() : "");
    tree.set_item(made, tree.copy(name), found == values.end() ? tree.copy(value) : found->second);
  }
  return made;
}

NodeId object_with(ValueTree& tree, const Value& object, const Replaced& values) {
  const NodeId made =
      tree.object(object.construction(), tree.copy(object.callable()), tree.copy(object.args()));
  tree.set_state(made, state_with(tree, *object.state(), values));
  return made;
}

NodeId add_numbers(ValueTree& tree, Kind kind, const Extents& numbers) {
  std::vector<NodeId> nodes;
  for (const uint64_t number : numbers) {
    nodes.push_back(tree.integer(static_cast<int64_t>(number)));
  }
  return tree.sequence(kind, nodes);
}

// A rank's place in the mesh of the form, and in the one that is written.
struct MeshChange {
  Extents sizes, coordinates, coordinates_of_form;
};

MeshChange change_mesh(const RankTensor& known, WrittenRank rank) {
  const auto& placements = known.placements;
  const bool is_known = (placements.size() == 1 || placements.size() == 2) && known.coordinates;
  const bool is_fsdp = is_known && placements.back().is_sharded && placements.back().dim == 0 &&
                       placements.back().split_factor == 1 &&
                       (placements.size() == 1 || !placements[0].is_sharded);
  if (!is_fsdp) {
    refuse(
        "is not cut as FSDP cuts, by Shard(0) on a mesh of one dimension or with replicas "
        "before it: tensor parallel ranks are not written");
  }
  if (placements.size() == 1) return {{rank.ranks}, {rank.rank}, *known.coordinates};
  const uint64_t shards = known.mesh[1];
  if (rank.ranks % shards != 0 || rank.ranks == shards) {
    refuse("is cut in " + std::to_string(shards) + " shards, with replicas: " +
           std::to_string(rank.ranks) + " ranks are not a multiple of that");
  }
  return {
      {rank.ranks / shards, shards}, {rank.rank / shards, rank.rank % shards}, *known.coordinates};
}

// Ranks that differ in one coordinate alone.
Extents ranks_along(const MeshChange& change, size_t dim) {
  const Extents strides = row_major_strides(change.sizes);
  Extents ranks;
  for (uint64_t i = 0; i < change.sizes[dim]; ++i) {
    uint64_t rank = 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      rank += strides[d] * (d == dim ? i : change.coordinates[d]);
    }
    ranks.push_back(rank);
  }
  return ranks;
}

// Process groups are numbered as they are made, one for each line of the mesh.
std::string group_name(std::string_view name, const MeshChange& change, size_t dim) {
  if (change.sizes.size() == 1) return std::string(name);
  const auto number = number_in<uint64_t>(name);
  const size_t other = 1 - dim;
  if (!number || *number < change.coordinates_of_form[other]) {
    refuse("lies on a mesh whose process group is called " + escaped(name) + ", not by a number");
  }
  return std::to_string(*number - change.coordinates_of_form[other] + change.coordinates[other]);
}

class MeshWriter {
 public:
  MeshWriter(ArchiveBuilder& builder, WrittenRank rank, MeshChange change)
      : builder_(builder), tree_(builder.tree()), rank_(rank), change_(std::move(change)) {}

  NodeId write(const Value& form) {
    Replaced values;
    const auto state = form.is(Kind::Object) ? form.state() : std::nullopt;
    for (size_t i = 0; state && state->is(Kind::Dict) && i < state->item_count(); ++i) {
      const auto [name, value] = state->item(i);
      if (const NodeId node = attribute(key_text(name), value); node != kNoNode) {
        values.emplace(name.text(), node);
      }
    }
    return object_with(tree_, form, values);
  }

 private:
  // kNoNode: it stays as it is.
  NodeId attribute(const std::string& name, const Value& value) {
    if (name == "_layout") {
      if (attribute_of(value, "axes")) refuse("lies on a mesh as torch 2.15 states it");
      return object_with(
          tree_, value,
          {{"shape", add_numbers(tree_, Kind::Tuple, change_.sizes)},
           {"stride", add_numbers(tree_, Kind::Tuple, row_major_strides(change_.sizes))}});
    }
    if (name == "mesh") return add_ranks(value, change_.sizes);
    if (name == "_rank_map") return add_ranks(value, {rank_.ranks});
    if (name == "_flatten_rank_map" || name == "_flatten_mesh_list") {
      Extents ranks(rank_.ranks);
      std::iota(ranks.begin(), ranks.end(), 0);
      return add_numbers(tree_, Kind::Tuple, ranks);
    }
    if (name == "_rank") return tree_.integer(static_cast<int64_t>(rank_.rank));
    if (name == "_coordinate_on_dim") return add_numbers(tree_, value.kind(), change_.coordinates);
    if (name == "_dim_group_names" || name == "_dim_group_infos") return add_groups(value);
    if (name == "_hash") return tree_.none();  // of names in another process
    const bool is_empty = value.is_none() || (value.is(Kind::Dict) && value.item_count() == 0);
    const bool is_of_all = name == "_device_type" || name == "device_type" ||
                           name == "_mesh_dim_names" || name == "mesh_dim_names" || is_empty;
    if (!is_of_all) {
      refuse("lies on a mesh with " + escaped(name) + ", whose value on other ranks is not known" +
             (name == "_root_mesh" ? ": tensor parallel ranks are not written" : ""));
    }
    return kNoNode;
  }

  NodeId add_ranks(const Value& form, const Extents& shape) {
    const auto view = as_tensor(form);
    if (!view || (view->dtype != DType::Int32 && view->dtype != DType::Int64)) {
      refuse("lies on a mesh whose ranks are not a tensor of integers");
    }
    const uint64_t each = bytes_per_element(view->dtype);
    std::string bytes(rank_.ranks * each, '\0');
    for (uint64_t rank = 0; rank < rank_.ranks; ++rank) {
      std::memcpy(bytes.data() + rank * each, &rank, each);  // little-endian, as files are
    }
    return builder_.add_tensor(view->dtype, shape, std::move(bytes));
  }

  // Names, or of older versions (tag, ranks, name).
  NodeId add_groups(const Value& form) {
    const NodeId list = tree_.list();
    if (!form.is(Kind::List) || form.size() != change_.sizes.size()) {
      refuse("lies on a mesh that does not say its process groups");
    }
    for (size_t dim = 0; dim < form.size(); ++dim) {
      const Value group = form[dim];
      const bool is_info = group.is(Kind::Tuple) && group.size() == 3;
      const Value name = is_info ? group[2] : group;
      const NodeId made = tree_.str(group_name(name.text(), change_, dim));
      const NodeId ranks = is_info ? add_numbers(tree_, Kind::List, ranks_along(change_, dim)) : 0;
      tree_.append(list, is_info ? tree_.tuple({tree_.copy(group[0]), ranks, made}) : made);
    }
    return list;
  }

  ArchiveBuilder& builder_;
  ValueTree& tree_;
  WrittenRank rank_;
  MeshChange change_;
};

std::optional<Value> storage_id_of(const Value& tensor) {
  if (!tensor.is(Kind::Object) || tensor.args().size() == 0) return std::nullopt;
  const Value first = tensor.args()[0];
  if (first.is(Kind::Object)) return storage_id_of(first);  // of a Parameter
  const bool is_storage = first.is(Kind::PersistentId) && first.persistent_id().size() >= 5;
  return is_storage ? std::optional(first) : std::nullopt;
}

using Attributes = std::vector<std::pair<std::string_view, NodeId>>;

NodeId add_dict(ValueTree& tree, const Attributes& items) {
  const NodeId dict = tree.dict();
  for (const auto& [name, value] : items) tree.set_item(dict, tree.str(name), value);
  return dict;
}

NodeId add_built(ValueTree& tree, std::string_view module, std::string_view name,
                 const Attributes& state) {
  const NodeId made = tree.object(Construction::NewObj, tree.global(module, name), tree.tuple({}));
  tree.set_state(made, add_dict(tree, state));
  return made;
}

constexpr const char* kSpecModule = "torch.distributed.tensor._dtensor_spec";

NodeId add_spec_form(ValueTree& tree, NodeId dtype, const Extents& shape, NodeId mesh) {
  const NodeId shard = add_built(tree, "torch.distributed.tensor.placement_types", "Shard",
                                 {{"dim", tree.integer(0)}});
  const NodeId meta =
      tree.object(Construction::NewObj, tree.global(kSpecModule, "TensorMeta"),
                  tree.tuple({add_size(tree, shape),
                              add_numbers(tree, Kind::Tuple, row_major_strides(shape)), dtype}));
  const NodeId order =
      tree.object(Construction::NewObj, tree.global(kSpecModule, "ShardOrderEntry"),
                  tree.tuple({tree.integer(0), tree.tuple({tree.integer(0)})}));
  return add_built(tree, kSpecModule, "DTensorSpec",
                   {{"mesh", mesh},
                    {"placements", tree.tuple({shard})},
                    {"tensor_meta", meta},
                    {"shard_order", tree.tuple({order})},
                    {"use_strided_shard_as_shard_order", tree.boolean(false)},
                    {"_hash", tree.none()}});
}

}  // namespace

NodeId add_mesh_form(ValueTree& tree, std::string_view device_type) {
  const auto numbers = [&](uint64_t number) { return add_numbers(tree, Kind::Tuple, {number}); };
  const NodeId layout = add_built(tree, "torch.distributed._mesh_layout", "_MeshLayout",
                                  {{"shape", numbers(1)}, {"stride", numbers(1)}});
  return add_built(tree, "torch.distributed.device_mesh", "DeviceMesh",
                   {{"_device_type", tree.str(device_type)},
                    {"_layout", layout},
                    {"_rank_map", add_tensor(tree, DType::Int32, {1}, "0")},
                    {"_mesh_dim_names", tree.tuple({tree.str("fsdp")})},
                    {"_root_mesh", tree.none()},
                    {"_flatten_rank_map", numbers(0)},
                    {"_thread_id", tree.none()},
                    {"_flatten_mapping", tree.dict()},
                    {"_dim_group_names", tree.list({tree.str("0")})},
                    {"_rank", tree.integer(0)},
                    {"_coordinate_on_dim", numbers(0)},
                    {"_hash", tree.none()}});
}

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

NodeId RankTensorWriter::mesh(const Value& form, const RankTensor& known) {
  const auto [found, is_new] = meshes_.emplace(form.id(), kNoNode);
  if (is_new) found->second = MeshWriter(builder_, rank_, change_mesh(known, rank_)).write(form);
  return found->second;
}

NodeId RankTensorWriter::add(std::shared_ptr<const TensorEntry> whole, const Value& form,
                             const RankTensor& known) {
  const auto wrapped = as_wrapped(form);
  const MeshChange change = change_mesh(known, rank_);
  const auto strides = wrapped->args.size() > 3 ? sizes_in(wrapped->args[3]) : std::nullopt;
  if (strides != row_major_strides(known.shape)) refuse("is not stored row by row");
  const Value spec = *attribute_in(wrapped->state, "_spec");
  const Box box = box_on_mesh(known.shape, known.placements, change.sizes, change.coordinates);
  const NodeId local =
      builder_.add_tensor(known.dtype, box.sizes, TensorSource{std::move(whole), box});
  ValueTree& tree = builder_.tree();
  set_device(tree, local, device_of(*attribute_in(wrapped->state, "_local_tensor")));
  Replaced of_spec{{"mesh", mesh(*attribute_of(spec, "mesh"), known)}};
  if (attribute_of(spec, "_hash")) of_spec.emplace("_hash", tree.none());
  const Replaced of_tensor{{"_local_tensor", local}, {"_spec", object_with(tree, spec, of_spec)}};
  const Value args = form.args();
  return tree.object(form.construction(), tree.copy(form.callable()),
                     tree.tuple({tree.copy(args[0]), tree.copy(args[1]), tree.copy(args[2]),
                                 state_with(tree, wrapped->state, of_tensor)}));
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
