// Source: torch/distributed/tensor/_dtensor_spec.py of PyTorch 2.11 and 2.15.
#include "targets/rank_tensor_writer.h"

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

NodeId RankTensorWriter::add(std::shared_ptr<const TensorEntry> whole, const Value& form,
                             const RankTensor& known) {
  const auto wrapped = as_wrapped(form);
  const auto strides = wrapped->args.size() > 3 ? sizes_in(wrapped->args[3]) : std::nullopt;
  if (strides != row_major_strides(known.shape)) refuse_rank_tensor("is not stored row by row");
  const Value spec = *attribute_in(wrapped->state, "_spec");
  const PlaceOnMesh place = meshes_.place(*attribute_of(spec, "mesh"), known);
  std::vector<MeshPlacement> placements = known.placements;
  placements.resize(place.sizes.size());
  const bool is_cut_less = placements.size() < known.placements.size();
  if (is_cut_less) placements.back().split_factor = 1;
  const Box box = box_on_mesh(known.shape, placements, place.sizes, place.coordinates);
  const NodeId local =
      builder_.add_tensor(known.dtype, box.sizes, TensorSource{std::move(whole), box});
  ValueTree& tree = builder_.tree();
  set_device(tree, local, device_of(*attribute_in(wrapped->state, "_local_tensor")));
  Replaced of_spec{{"mesh", place.mesh}};
  if (is_cut_less) replace_placements(tree, spec, place.data_dims, of_spec);
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
