// Source: torch/distributed/device_mesh.py and _mesh_layout.py of PyTorch 2.11 and 2.15, and
// what 2.5 to 2.8 called the same.
#include "targets/rank_mesh_writer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/values/torch_values.h"

namespace ckpt {

// All ranks of a run, of whose dimensions a DTensor's mesh has some.
struct RankGrid {
  Extents sizes, coordinates;
  std::vector<std::string> groups;  // the process group of the rank along each dimension

  // How many process groups a dimension has: one for each line of ranks.
  uint64_t line_count(size_t dim) const { return element_count(sizes) / sizes[dim]; }
  // That of the rank.
  uint64_t line_of(size_t dim) const {
    uint64_t line = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (d != dim) line = line * sizes[d] + coordinates[d];
    }
    return line;
  }
  uint64_t rank() const {
    uint64_t rank = 0;
    for (size_t d = 0; d < sizes.size(); ++d) rank = rank * sizes[d] + coordinates[d];
    return rank;
  }
  // Ranks that differ in this coordinate alone.
  Extents ranks_along(size_t dim) const {
    const uint64_t stride = row_major_strides(sizes)[dim];
    Extents ranks;
    for (uint64_t i = 0; i < sizes[dim]; ++i) {
      ranks.push_back(rank() - (coordinates[dim] - i) * stride);
    }
    return ranks;
  }
};

namespace {

Extents coordinates_in(const Extents& sizes, uint64_t rank) {
  Extents coordinates;
  for (const uint64_t stride : row_major_strides(sizes)) {
    coordinates.push_back(rank / stride % sizes[coordinates.size()]);
  }
  return coordinates;
}

Value root_of(const Value& mesh) {
  const auto root = attribute_of(mesh, "_root_mesh");
  return root && !root->is_none() ? *root : mesh;
}

RankGrid read_grid(const Value& root, uint64_t ranks) {
  const RankMesh mesh = read_mesh(root);
  if (!mesh.shape || !mesh.coordinates || mesh.shape->size() != mesh.coordinates->size()) {
    refuse_rank_tensor("lies on a mesh that has no sizes that are read");
  }
  RankGrid grid{*mesh.shape, *mesh.coordinates, {}};
  const bool is_all = element_count(grid.sizes) == ranks &&
                      coordinates_in(grid.sizes, grid.rank()) == grid.coordinates;
  if (!is_all ||
      mesh.rank.value_or(static_cast<int64_t>(grid.rank())) != static_cast<int64_t>(grid.rank())) {
    refuse_rank_tensor("lies on a mesh that does not have all ranks in their order");
  }
  auto groups = attribute_of(root, "_dim_group_names");
  if (!groups) groups = attribute_of(root, "_dim_group_infos");
  if (!groups || !groups->is(Kind::List) || groups->size() != grid.sizes.size()) {
    refuse_rank_tensor("lies on a mesh that does not say its process groups");
  }
  for (size_t i = 0; i < groups->size(); ++i) {
    const Value group = (*groups)[i];
    const Value name = group.is(Kind::Tuple) && group.size() == 3 ? group[2] : group;
    if (!name.is(Kind::Str))
      refuse_rank_tensor("lies on a mesh that does not say its process groups");
    grid.groups.emplace_back(name.text());
  }
  return grid;
}

constexpr std::string_view kGroupOfAll = "0";

// Process groups are numbered as they are made: dimension by dimension, one for each line of the
// mesh, but for a dimension that has all ranks.
void number_groups(const RankGrid& known, RankGrid& made) {
  if (made.sizes.size() == 1) {
    made.groups = known.sizes.size() == 1 ? known.groups : std::vector{std::string(kGroupOfAll)};
    return;
  }
  uint64_t count = 0, first = 1;
  for (size_t d = 0; d < known.sizes.size(); ++d) {
    if (known.line_count(d) == 1) continue;
    const auto number = number_in<uint64_t>(known.groups[d]);
    const uint64_t before = count + known.line_of(d);
    if (!number || *number < before || (count != 0 && *number != first + before)) {
      refuse_rank_tensor("lies on a mesh whose process group is called " +
                         escaped(known.groups[d]) + ", not by a number");
    }
    first = *number - before;
    count += known.line_count(d);
  }
  for (size_t d = 0; d < made.sizes.size(); ++d) {
    const bool is_of_all = made.line_count(d) == 1;
    made.groups.push_back(is_of_all ? std::string(kGroupOfAll)
                                    : std::to_string(first + made.line_of(d)));
    if (!is_of_all) first += made.line_count(d);
  }
}

// The grid that a rank is written for: that of the form but for its first dimension, of FSDP's
// shards or of their replicas, and for what MeshSizes says of those behind it.
RankGrid change_grid(const RankGrid& known, const WrittenRank& rank, size_t kept) {
  RankGrid made;
  made.sizes = known.sizes;
  const auto [shards, tensor] = rank.sizes;
  if (shards != 0 && kept != 2) {
    refuse_rank_tensor("lies on a mesh without replicas: all of FSDP's ranks are its shards");
  }
  if (shards != 0) made.sizes[1] = shards;
  if (tensor == 1) made.sizes.resize(kept);
  if (tensor > 1 && made.sizes.size() != kept + 1) {
    refuse_rank_tensor("lies on a mesh that has not one dimension of tensor parallel ranks");
  }
  if (tensor > 1) made.sizes[kept] = tensor;
  made.sizes[0] = 1;
  const uint64_t inner = element_count(made.sizes);
  if (rank.ranks % inner != 0 || (kept == 2 && rank.ranks == inner)) {
    refuse_rank_tensor("needs a multiple of " + std::to_string(inner) + " ranks" +
                       (kept == 2 ? ", at least " + std::to_string(2 * inner) : "") +
                       ", as its mesh has more dimensions, not " + std::to_string(rank.ranks));
  }
  made.sizes[0] = rank.ranks / inner;
  made.coordinates = coordinates_in(made.sizes, rank.rank);
  number_groups(known, made);
  return made;
}

// The dimensions of the grid that a mesh has, by their names.
std::vector<size_t> dims_of(const Value& mesh, const Value& root) {
  std::vector<size_t> dims;
  if (mesh.id() == root.id()) {
    dims.resize(read_mesh(root).shape->size());
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  }
  const auto names = attribute_of(mesh, "_mesh_dim_names");
  const auto all = attribute_of(root, "_mesh_dim_names");
  const bool have_names = names && all && names->is(Kind::Tuple) && all->is(Kind::Tuple);
  for (size_t i = 0; have_names && i < names->size(); ++i) {
    for (size_t dim = 0; dim < all->size(); ++dim) {
      if (key_text((*all)[dim]) == key_text((*names)[i])) dims.push_back(dim);
    }
  }
  return dims;
}

// How many dimensions of its mesh, from the first on, are FSDP's: its shards, or replicas of them.
// What lies behind is of tensor parallel ranks.
size_t data_dims(const RankTensor& known, const std::vector<size_t>& dims) {
  const auto& placements = known.placements;
  const auto first = std::ranges::find_if(placements, &MeshPlacement::is_sharded);
  const auto place = static_cast<size_t>(first - placements.begin());
  uint64_t cut_before = 1;
  bool is_fsdp = known.coordinates && place < std::min<size_t>(placements.size(), 2) &&
                 dims.size() == placements.size() && first->dim == 0;
  for (size_t i = 0; is_fsdp && i < placements.size(); ++i) {
    is_fsdp = (i > place || dims[i] == i) && (i == place || placements[i].split_factor == 1);
    if (i > place && placements[i].is_sharded && placements[i].dim == 0)
      cut_before *= known.mesh[i];
  }
  if (!is_fsdp || first->split_factor != cut_before) {
    refuse_rank_tensor(
        "is not cut as FSDP cuts, by Shard(0) on the first dimension of its mesh, or the second "
        "with replicas before it");
  }
  return place + 1;
}

class MeshWriter {
 public:
  // `dims`: those of the grid that the mesh has. `root`: that it is a part of, or kNoNode.
  MeshWriter(ArchiveBuilder& builder, const RankGrid& grid, std::vector<size_t> dims, NodeId root)
      : builder_(builder),
        tree_(builder.tree()),
        grid_(grid),
        dims_(std::move(dims)),
        root_(root) {}

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
    const uint64_t ranks = element_count(grid_.sizes);
    if (name == "_layout") return add_layout(value);
    if (name == "mesh" && root_ == kNoNode) return add_ranks(value, grid_.sizes);
    if (name == "_rank_map") return add_ranks(value, {ranks});
    if (name == "_flatten_rank_map" || name == "_flatten_mesh_list") {
      Extents numbers(ranks);
      std::iota(numbers.begin(), numbers.end(), 0);
      return add_numbers(tree_, Kind::Tuple, numbers);
    }
    if (name == "_rank") return tree_.integer(static_cast<int64_t>(grid_.rank()));
    if (name == "_coordinate_on_dim") {
      return add_numbers(tree_, value.kind(), of_dims(grid_.coordinates));
    }
    if (name == "_dim_group_names" || name == "_dim_group_infos") return add_groups(value);
    if (name == "_mesh_dim_names" || name == "mesh_dim_names") return first_of(value);
    if (name == "_root_mesh") return root_ == kNoNode ? tree_.none() : root_;
    if (name == "_hash") return tree_.none();  // of names in another process
    const bool is_empty = value.is_none() || (value.is(Kind::Dict) && value.item_count() == 0) ||
                          (value.is(Kind::Bool) && !value.as_bool());
    if (!is_empty && name != "_device_type" && name != "device_type") {
      refuse_rank_tensor("lies on a mesh with " + escaped(name) +
                         ", whose value on other ranks is not known");
    }
    return kNoNode;
  }

  Extents of_dims(const Extents& of_grid) const {
    Extents made;
    for (const size_t dim : dims_) made.push_back(of_grid[dim]);
    return made;
  }

  // torch 2.15 has a layout for each dimension, where one of size 1 has no numbers.
  NodeId add_layout(const Value& form) {
    const Extents sizes = of_dims(grid_.sizes), strides = of_dims(row_major_strides(grid_.sizes));
    const auto axes = attribute_of(form, "axes");
    if (!axes) return layout_with(form, sizes, strides);
    std::vector<NodeId> made;
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (!axes->is(Kind::Tuple) || i >= axes->size() || !(*axes)[i].is(Kind::Object)) {
        refuse_rank_tensor("lies on a mesh whose axes are not read");
      }
      const bool has_numbers = sizes[i] != 1;
      made.push_back(layout_with((*axes)[i], has_numbers ? Extents{sizes[i]} : Extents{},
                                 has_numbers ? Extents{strides[i]} : Extents{}));
    }
    return object_with(tree_, form, {{"axes", tree_.sequence(Kind::Tuple, made)}});
  }

  NodeId layout_with(const Value& form, const Extents& sizes, const Extents& strides) {
    return object_with(tree_, form,
                       {{"shape", add_numbers(tree_, Kind::Tuple, sizes)},
                        {"stride", add_numbers(tree_, Kind::Tuple, strides)}});
  }

  NodeId add_ranks(const Value& form, const Extents& shape) {
    const auto view = as_tensor(form);
    if (!view || (view->dtype != DType::Int32 && view->dtype != DType::Int64)) {
      refuse_rank_tensor("lies on a mesh whose ranks are not a tensor of integers");
    }
    const uint64_t each = bytes_per_element(view->dtype), ranks = element_count(grid_.sizes);
    std::string bytes(ranks * each, '\0');
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(bytes.data() + rank * each, &rank, each);  // little-endian, as files are
    }
    return builder_.add_tensor(view->dtype, shape, std::move(bytes));
  }

  // Names, or of older versions (tag, ranks, name).
  NodeId add_groups(const Value& form) {
    const NodeId list = tree_.list();
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (!form.is(Kind::List) || i >= form.size()) {
        refuse_rank_tensor("lies on a mesh that does not say its process groups");
      }
      const bool is_info = form[i].is(Kind::Tuple) && form[i].size() == 3;
      const NodeId name = tree_.str(grid_.groups[dims_[i]]);
      const NodeId ranks =
          is_info ? add_numbers(tree_, Kind::List, grid_.ranks_along(dims_[i])) : 0;
      tree_.append(list, is_info ? tree_.tuple({tree_.copy(form[i][0]), ranks, name}) : name);
    }
    return list;
  }

  // Of the dimensions that are kept.
  NodeId first_of(const Value& names) {
    if (!names.is(Kind::Tuple) || names.size() <= dims_.size()) return kNoNode;
    std::vector<NodeId> kept;
    for (size_t i = 0; i < dims_.size(); ++i) kept.push_back(tree_.copy(names[i]));
    return tree_.sequence(Kind::Tuple, kept);
  }

  ArchiveBuilder& builder_;
  ValueTree& tree_;
  const RankGrid& grid_;
  std::vector<size_t> dims_;
  NodeId root_;
};

}  // namespace

void refuse_rank_tensor(std::string problem) {
  throw Error(ErrorCode::Unsupported, {}, std::move(problem),
              "--to torch_dist holds it for any number of ranks");
}

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

NodeId RankMeshWriter::write(const Value& form, const RankGrid& grid,
                             const std::vector<size_t>& dims) {
  if (const auto found = meshes_.find(form.id()); found != meshes_.end()) return found->second;
  const Value root = root_of(form);
  NodeId root_node = kNoNode;
  const bool is_part = root.id() != form.id() && rank_.sizes.tensor != 1;
  if (is_part) root_node = write(root, grid, dims_of(root, root));
  return meshes_[form.id()] = MeshWriter(builder_, grid, dims, root_node).write(form);
}

PlaceOnMesh RankMeshWriter::place(const Value& mesh, const RankTensor& known) {
  const Value root = root_of(mesh);
  std::vector<size_t> dims = dims_of(mesh, root);
  PlaceOnMesh place;
  place.data_dims = data_dims(known, dims);
  const size_t before = std::exchange(data_dims_, place.data_dims);
  if (before != 0 && before != place.data_dims) {
    refuse_rank_tensor("is cut over other dimensions of its mesh than the tensors before it");
  }
  const RankGrid known_grid = read_grid(root, rank_.ranks_of_source);
  if (std::ranges::max(dims) >= known_grid.sizes.size()) {
    refuse_rank_tensor("lies on a mesh with names that the mesh of all ranks does not have");
  }
  const RankGrid grid = change_grid(known_grid, rank_, place.data_dims);
  if (rank_.sizes.tensor == 1) dims.resize(place.data_dims);
  for (const size_t dim : dims) {
    place.sizes.push_back(grid.sizes[dim]);
    place.coordinates.push_back(grid.coordinates[dim]);
  }
  place.mesh = write(mesh, grid, dims);
  return place;
}

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

}  // namespace ckpt
