// What torch.save files of one rank say of tensors that several ranks hold: DTensor (FSDP2, tensor
// parallel layers), ShardedTensor and flat parameters (FSDP1). Nothing is built from it: these are
// words for people, and a reason to refuse what would take a part for the whole.
#include <ckpt/document.h>

#include <algorithm>
#include <set>

#include <ckpt/error.h>

#include "format/values/torch_values.h"

namespace ckpt {
namespace {

constexpr std::string_view kFlat = "flat parameter of FSDP";

std::optional<Extents> whole_shape(const WrappedTensor& wrapped) {
  const bool has_size = wrapped.args.is(Kind::Tuple) && wrapped.args.size() > 2;
  return has_size ? sizes_in(wrapped.args[2]) : std::nullopt;
}

std::string part_text(uint64_t part, uint64_t count) {
  return "this file holds part " + std::to_string(part) + " of " + std::to_string(count);
}

// --- DTensor ---

// Of torch 2.15: a layout of its own for each dimension.
std::optional<Extents> shape_of_axes(const Value& axes) {
  Extents shape;
  for (size_t i = 0; axes.is(Kind::Tuple) && i < axes.size(); ++i) {
    const auto sizes = sizes_at(axes[i], "shape");
    if (!sizes) return std::nullopt;
    shape.push_back(element_count(*sizes));
  }
  return shape;
}

std::optional<Extents> mesh_shape(const Value& mesh) {
  if (const auto layout = attribute_of(mesh, "_layout")) {
    if (auto shape = sizes_at(*layout, "shape")) return shape;
    if (const auto axes = attribute_of(*layout, "axes")) return shape_of_axes(*axes);
  }
  const auto ranks = attribute_of(mesh, "mesh");  // a tensor, before torch 2.9
  const auto view = ranks ? as_tensor(*ranks) : std::nullopt;
  return view ? std::optional(view->shape) : std::nullopt;
}

// As Python shows a tuple of strings.
std::string names_text(const Value& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "'" : ", '") + escaped(key_text(names[i])) + "'";
  }
  return "(" + text + (names.size() == 1 ? ",)" : ")");
}

enum class Kept : uint8_t { Same, Part, Summand, Unknown };  // what a rank has along a dimension

Kept kept_by(const std::string& placement) {
  if (placement == "Replicate") return Kept::Same;
  if (placement == "Shard" || placement == "_StridedShard") return Kept::Part;
  return placement.ends_with("Partial") ? Kept::Summand : Kept::Unknown;
}

std::string mesh_text(const RankMesh& mesh) {
  std::string text = mesh.names.empty() ? "a mesh" : "mesh " + mesh.names;
  for (size_t i = 0; mesh.shape && i < mesh.shape->size(); ++i) {
    text += (i == 0 ? " of size " : " x ") + std::to_string((*mesh.shape)[i]);
  }
  return text;
}

// What this rank's file has of it, and whether that is all.
std::string share_text(const std::vector<Kept>& kept, const RankMesh& mesh, bool& is_whole) {
  const auto has = [&](Kept what) { return std::ranges::find(kept, what) != kept.end(); };
  is_whole = !kept.empty() && !has(Kept::Part) && !has(Kept::Summand) && !has(Kept::Unknown);
  if (is_whole) return "every rank holds all of it";
  if (has(Kept::Summand)) return "this file holds one rank's summand of it";
  const bool is_known = mesh.shape && mesh.coordinates && mesh.shape->size() == kept.size() &&
                        mesh.coordinates->size() == kept.size() && !has(Kept::Unknown);
  if (!is_known) return "this file holds one rank's part of it";
  uint64_t part = 0, count = 1;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != Kept::Part) continue;
    part = part * (*mesh.shape)[i] + (*mesh.coordinates)[i];
    count *= (*mesh.shape)[i];
  }
  is_whole = count == 1;
  return part_text(part + 1, count);
}

void describe_dtensor(const WrappedTensor& wrapped, TensorPart& part) {
  part.words = "DTensor";
  const auto spec = attribute_in(wrapped.state, "_spec");
  const auto mesh_value = spec ? attribute_of(*spec, "mesh") : std::nullopt;
  const auto placements = spec ? attribute_of(*spec, "placements") : std::nullopt;
  std::vector<Kept> kept;
  for (size_t i = 0; placements && placements->is(Kind::Tuple) && i < placements->size(); ++i) {
    part.words += ", " + placement_text((*placements)[i]);
    kept.push_back(kept_by(class_name_of((*placements)[i])));
  }
  const RankMesh mesh = mesh_value ? read_mesh(*mesh_value) : RankMesh();
  part.words += (kept.empty() ? ", on " : " on ") + mesh_text(mesh) + ": ";
  part.words += share_text(kept, mesh, part.is_whole);
}

// --- ShardedTensor ---

// "1", "1 and 3": which of all parts the local shards are; empty where that is not said.
std::string local_numbers(const Value& shards, const Value& all) {
  std::string text;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto offsets = sizes_at(attribute_of(shards[i], "metadata"), "shard_offsets");
    size_t number = 0;
    while (number < all.size() && sizes_at(all[number], "shard_offsets") != offsets) ++number;
    if (!offsets || number == all.size()) return {};
    text += (text.empty() ? "" : " and ") + std::to_string(number + 1);
  }
  return text;
}

// Its __getstate__: (local shards, metadata, ranks, how it is sharded, ...).
void describe_sharded_tensor(const WrappedTensor& wrapped, TensorPart& part) {
  part.words = "ShardedTensor: this file holds one rank's part of it";
  const Value& state = wrapped.state;
  if (!state.is(Kind::Tuple) || state.size() < 2 || !state[0].is(Kind::List)) return;
  const auto all = attribute_of(state[1], "shards_metadata");
  if (!all || !all->is(Kind::List)) return;
  const std::string of_all = " of " + std::to_string(all->size());
  if (state[0].size() == 0) {
    part.words = "ShardedTensor: this file holds none" + of_all + " parts";
    return;
  }
  const std::string numbers = local_numbers(state[0], *all);
  if (numbers.empty()) return;
  part.is_whole = state[0].size() == all->size();
  part.words = "ShardedTensor: this file holds part " + numbers + of_all;
}

bool is_of_distributed(const Value& type, std::string_view name) {
  return type.module().starts_with("torch.distributed.") && type.name() == name;
}

std::optional<TensorPart> described(const Value& root, const WrappedAt& at) {
  const auto wrapped = as_wrapped(root.tree().value(at.node));
  TensorPart part{at.pointer, {}, whole_shape(*wrapped), false, {}};
  if (is_of_distributed(wrapped->type, "DTensor")) {
    describe_dtensor(*wrapped, part);
  } else if (is_of_distributed(wrapped->type, "ShardedTensor")) {
    describe_sharded_tensor(*wrapped, part);
  } else {
    return std::nullopt;
  }
  return part;
}

// The local tensors, without those that say which ranks there are.
void add_tensors(const FoundTensors& found, const WrappedAt& at, TensorPart& part) {
  const std::string inside = at.pointer + "/", spec = inside + "@_spec/";
  for (size_t i = at.first_tensor; i < found.tensors.size(); ++i) {
    const std::string& pointer = found.tensors[i].pointer;
    if (!pointer.starts_with(inside)) break;
    if (!pointer.starts_with(spec)) part.tensors.push_back(pointer);
  }
}

// --- flat parameters of FSDP1: many parameters in a row, cut into one piece for each rank ---

bool is_flat_name(std::string_view pointer) {
  const std::string_view name = pointer.substr(pointer.find_last_of("/.") + 1);
  return name == "_flat_param" || name == "flat_param";
}

bool is_in_wrapped_module(const TensorAt& tensor) {
  return tensor.pointer.find("_fsdp_wrapped_module.") != tensor.pointer.npos;
}

class FlatParts {
 public:
  FlatParts(const FoundTensors& found, std::vector<TensorPart>& parts)
      : found_(found), parts_(parts) {
    for (TensorPart& part : parts_) {
      known_.insert(part.tensors.begin(), part.tensors.end());
      if (is_flat_name(part.pointer)) part.words = std::string(kFlat) + ", " + part.words;
    }
  }

  void add() {
    for (const TensorAt& tensor : found_.tensors) find_storage(tensor);
    const bool is_cut = std::ranges::all_of(found_.tensors, [](const TensorAt& tensor) {
      return !is_in_wrapped_module(tensor) || tensor.view.shape.size() <= 1;
    });
    for (const TensorAt& tensor : found_.tensors) {
      if (known_.contains(tensor.pointer) || tensor.view.shape.size() != 1) continue;
      const bool is_empty = tensor.view.shape[0] == 0;  // a parameter of other ranks
      if (storages_.contains(tensor.view.storage_key) || (is_empty && !storages_.empty())) {
        add(tensor, "flat shard of FSDP: one rank's elements of it, a view of a flat parameter");
      } else if (is_cut && is_in_wrapped_module(tensor)) {
        add(tensor, "flat tensor inside FSDP (_fsdp_wrapped_module): one rank's elements of it");
      }
    }
  }

 private:
  void find_storage(const TensorAt& tensor) {
    const size_t in_shards = tensor.pointer.find("/@__setstate__/");
    const bool is_local = known_.contains(tensor.pointer) && in_shards != tensor.pointer.npos;
    const bool is_flat = is_flat_name(tensor.pointer) && tensor.view.shape.size() == 1;
    if (is_local && is_flat_name(std::string_view(tensor.pointer).substr(0, in_shards))) {
      storages_.insert(tensor.view.storage_key);
    } else if (is_flat && !known_.contains(tensor.pointer)) {
      storages_.insert(tensor.view.storage_key);
      add(tensor, std::string(kFlat) + ": one rank's elements of several parameters in a row");
    }
  }

  void add(const TensorAt& tensor, std::string words) {
    parts_.push_back({tensor.pointer, std::move(words), std::nullopt, false, {tensor.pointer}});
    known_.insert(tensor.pointer);
  }

  const FoundTensors& found_;
  std::vector<TensorPart>& parts_;
  std::set<std::string> known_, storages_;
};

}  // namespace

std::optional<Value> attribute_of(const Value& object, std::string_view name) {
  if (!object.is(Kind::Object) || !object.state()) return std::nullopt;
  return attribute_in(*object.state(), name);
}

std::optional<Extents> sizes_in(const Value& value) {
  if (value.is(Kind::Object) && value.callable().is_global("torch", "Size") &&
      value.args().size() == 1) {
    return sizes_in(value.args()[0]);
  }
  if (!value.is(Kind::Tuple) && !value.is(Kind::List)) return std::nullopt;
  Extents numbers;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is(Kind::Int) || value[i].as_int() < 0) return std::nullopt;
    numbers.push_back(static_cast<uint64_t>(value[i].as_int()));
  }
  return numbers;
}

std::optional<Extents> sizes_at(const std::optional<Value>& object, std::string_view name) {
  const auto value = object ? attribute_of(*object, name) : std::nullopt;
  return value ? sizes_in(*value) : std::nullopt;
}

std::string class_name_of(const Value& object) {
  const bool is_known = object.is(Kind::Object) && object.callable().is(Kind::Global);
  return is_known ? escaped(object.callable().name()) : "?";
}

std::string placement_text(const Value& placement) {
  const std::string name = class_name_of(placement);
  std::string text;
  for (const char* setting : {"dim", "split_factor", "reduce_op"}) {
    const auto value = attribute_of(placement, setting);
    if (value) text += (text.empty() ? "" : ", ") + escaped(key_text(*value));
  }
  return name + "(" + text + ")";
}

RankMesh read_mesh(const Value& value) {
  RankMesh mesh{{}, mesh_shape(value), sizes_at(value, "_coordinate_on_dim"), {}};
  const auto names = attribute_of(value, "_mesh_dim_names");
  if (names && names->is(Kind::Tuple)) mesh.names = names_text(*names);
  const auto rank = attribute_of(value, "_rank");
  if (rank && rank->is(Kind::Int)) mesh.rank = rank->as_int();
  return mesh;
}

std::optional<WrappedTensor> as_wrapped(const Value& value) {
  if (!value.is(Kind::Object)) return std::nullopt;
  if (!value.callable().is_global("torch._tensor", "_rebuild_from_type_v2")) return std::nullopt;
  const Value args = value.args();
  const bool is_wrapper = args.is(Kind::Tuple) && args.size() == 4 && args[1].is(Kind::Global) &&
                          args[0].is_global("torch._utils", "_rebuild_wrapper_subclass");
  return is_wrapper ? std::optional(WrappedTensor{args[1], args[2], args[3]}) : std::nullopt;
}

std::optional<Value> attribute_in(const Value& state, std::string_view name) {
  if (state.is(Kind::Dict)) return state.find(name);
  for (size_t i = 0; state.is(Kind::Tuple) && i < state.size(); ++i) {
    const auto value = state[i].is(Kind::Dict) ? state[i].find(name) : std::nullopt;
    if (value) return value;
  }
  return std::nullopt;
}

std::vector<TensorPart> parts_in(const Value& root) {
  const FoundTensors found = find_tensors(root);
  std::vector<TensorPart> parts;
  for (const WrappedAt& at : found.wrapped) {
    const bool is_inside = !parts.empty() && at.pointer.starts_with(parts.back().pointer + "/");
    auto part = is_inside ? std::nullopt : described(root, at);
    if (!part) continue;
    add_tensors(found, at, *part);
    parts.push_back(std::move(*part));
  }
  FlatParts(found, parts).add();
  return parts;
}

}  // namespace ckpt
