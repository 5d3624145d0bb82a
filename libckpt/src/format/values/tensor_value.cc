// Tensors as torch.save's pickles state them. The functions named here are never called: their
// arguments say what they would build (torch/_utils.py and torch/_tensor.py document them by name).

#include <algorithm>
#include <map>
#include <string_view>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/limits.h>

#include "base/checked_math.h"
#include "format/values/nesting.h"
#include "format/values/other_dtypes.h"
#include "format/values/torch_values.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

[[noreturn]] void malformed(const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "a tensor's " + problem);
}

// What a rebuilding function of torch takes.
struct ArgumentCount {
  size_t min, max;
};

void check_count(const Value& args, ArgumentCount count) {
  if (args.is(Kind::Tuple) && args.size() >= count.min && args.size() <= count.max) return;
  malformed("arguments are not a tuple of " + std::to_string(count.min) +
            (count.min == count.max ? "" : " or " + std::to_string(count.max)));
}

bool as_flag(const Value& value, const char* what) {
  if (!value.is(Kind::Bool)) malformed(std::string(what) + " is neither True nor False");
  return value.as_bool();
}

// torch.save writes none: functions are not state.
void refuse_hooks(const Value& hooks) {
  const auto mapping = as_mapping(hooks);
  if (hooks.is_none() || (mapping && mapping->item_count() == 0)) return;
  throw Error(ErrorCode::Unsupported, {}, "a tensor with backward hooks");
}

Extents as_extents(const Value& value, const char* what) {
  if (!value.is(Kind::Tuple) || value.size() > Limits().dims_max) {
    malformed(std::string(what) + " is not a tuple of at most 64 numbers");
  }
  Extents extents;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is(Kind::Int) || value[i].as_int() < 0) {
      malformed(std::string(what) + " holds something that is not a valid size");
    }
    extents.push_back(static_cast<uint64_t>(value[i].as_int()));
  }
  return extents;
}

// The last element that a view touches must lie in its storage.
void check_in_storage(const TensorView& view) {
  const uint64_t bytes = bytes_per_element(view.dtype);
  const uint64_t capacity = view.storage_count_bytes / bytes;
  if (element_count(view.shape) == 0) return;
  std::optional<uint64_t> last = view.offset;
  for (size_t i = 0; i < view.shape.size() && last; ++i) {
    const auto reach = checked_mul(view.shape[i] - 1, view.strides[i]);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
  }
  if (!last || *last >= capacity) {
    malformed("view extends beyond its storage of " + std::to_string(capacity) + " elements");
  }
}

// Lazy views: torch conjugates or negates what is stored, whenever it is read. Other flags are of
// backends that store in an order of their own.
void refuse_lazy_view(const Value& metadata) {
  if (metadata.is_none()) return;
  if (!metadata.is(Kind::Dict)) malformed("metadata is not a dict");
  for (const auto& [key, flag] : items_of(metadata)) {
    if (!key.is(Kind::Str)) malformed("metadata has a key that is not a string");
    if (!as_flag(flag, "metadata")) continue;
    const std::string bit = escaped(key.text());
    if (bit != "conj" && bit != "neg") {
      throw Error(ErrorCode::Unsupported, {}, "a tensor with the metadata '" + bit + "'");
    }
    throw Error(ErrorCode::Unsupported, {},
                "a lazy " + bit + " view of its storage (resolve_" + bit +
                    "() before saving makes it a plain tensor)");
  }
}

// _rebuild_tensor(storage, offset, size, stride); with requires_grad, hooks[, metadata] _v2; with
// requires_grad, hooks, dtype[, metadata] _v3.
enum class Rebuild : uint8_t { V1, V2, V3 };

constexpr ArgumentCount kRebuildCounts[] = {{4, 4}, {6, 7}, {7, 8}};

TensorView view_of_storage(const Value& args, Rebuild function) {
  check_count(args, kRebuildCounts[static_cast<size_t>(function)]);
  const bool dtype_given = function == Rebuild::V3;
  if (!args[0].is(Kind::PersistentId)) malformed("storage is not a persistent ID");
  const StorageId storage = as_storage_id(args[0]);
  TensorView view;
  view.storage_key = storage.key;
  const auto dtype = dtype_given ? as_dtype(args[6]) : storage.dtype;
  if (!dtype && dtype_given) refuse_other_dtype(args[6]);
  if (!dtype) malformed("element type is unknown");
  view.dtype = *dtype;
  const uint64_t unit_bytes = storage.dtype ? bytes_per_element(*storage.dtype) : 1;
  const auto storage_bytes = checked_mul(storage.count, unit_bytes);
  if (!storage_bytes) malformed("storage is too large");
  view.storage_count_bytes = *storage_bytes;
  if (!args[1].is(Kind::Int) || args[1].as_int() < 0)
    malformed("offset is not a whole number of at least 0");
  view.offset = static_cast<uint64_t>(args[1].as_int());
  view.shape = as_extents(args[2], "size");
  check_shape(view.shape);
  check_bytes(view.shape, view.dtype);
  view.strides = as_extents(args[3], "stride");
  if (view.shape.size() != view.strides.size()) malformed("size and stride differ in length");
  if (function != Rebuild::V1) {
    view.requires_grad = as_flag(args[4], "requires_grad");
    view.requires_grad_node = args[4].id();
    refuse_hooks(args[5]);
  }
  const size_t metadata = dtype_given ? 7 : 6;
  if (args.size() > metadata) refuse_lazy_view(args[metadata]);
  check_in_storage(view);
  return view;
}

std::optional<TensorView> rebuilt(std::string_view module, std::string_view function,
                                  const Value& args);

bool is_parameter_class(const Value& type) {
  return type.is_global("torch.nn.parameter", "Parameter") ||
         type.is_global("torch.nn", "Parameter");
}

// _rebuild_from_type_v2(function, type, args, state): a tensor with attributes, or of a subclass.
// A subclass that wraps other tensors (DTensor) or has a function of its own is an object: its
// tensors are in its state.
std::optional<TensorView> rebuilt_from_type(const Value& args) {
  check_count(args, {4, 4});
  if (!args[0].is(Kind::Global)) malformed("rebuild function is not a name");
  if (args[0].is_global("torch._utils", "_rebuild_wrapper_subclass")) return std::nullopt;
  auto view = rebuilt(args[0].module(), args[0].name(), args[2]);
  if (!view) return std::nullopt;
  if (!args[1].is(Kind::Global)) malformed("class is not a name");
  view->attributes = args[3].id();
  view->is_parameter = is_parameter_class(args[1]);
  const bool is_plain = view->is_parameter || args[1].is_global("torch", "Tensor");
  if (!is_plain) view->subclass = args[1].id();
  return view;
}

std::optional<TensorView> rebuilt(std::string_view module, std::string_view function,
                                  const Value& args) {
  if (module != "torch._utils" || !function.starts_with("_rebuild_")) return std::nullopt;
  if (function == "_rebuild_tensor") return view_of_storage(args, Rebuild::V1);
  if (function == "_rebuild_tensor_v2") return view_of_storage(args, Rebuild::V2);
  if (function == "_rebuild_tensor_v3") return view_of_storage(args, Rebuild::V3);
  throw Error(ErrorCode::Unsupported, {}, "a tensor rebuilt by torch._utils." + escaped(function));
}

// _rebuild_parameter(data, requires_grad, hooks) and, with a state, _rebuild_parameter_with_state.
bool is_parameter(const Value& callable) {
  return callable.is_global("torch._utils", "_rebuild_parameter") ||
         callable.is_global("torch._utils", "_rebuild_parameter_with_state");
}

// A Parameter holds its tensor as first argument; a loop, since a file may nest them.
std::optional<Value> without_parameter(Value value) {
  for (int depth = 0; depth < 8; ++depth) {
    if (!value.is(Kind::Object) || !value.callable().is(Kind::Global)) return std::nullopt;
    if (!is_parameter(value.callable())) return value;
    const size_t count = value.callable().name() == "_rebuild_parameter" ? 3 : 4;
    check_count(value.args(), {count, count});
    value = value.args()[0];
  }
  malformed("Parameter is nested too deeply");
}

bool is_from_type(const Value& callable) {
  return callable.is_global("torch._tensor", "_rebuild_from_type_v2");
}

// torch.Tensor(...), torch.cuda.FloatTensor(...): made by a constructor, as no torch.save does.
bool is_tensor_class(const Value& callable) {
  if (is_parameter_class(callable)) return true;
  const std::string_view module = callable.module();
  const bool is_torch = module == "torch" || module == "torch.cuda" || module == "torch.sparse" ||
                        module == "torch.cuda.sparse";
  return is_torch && callable.name().ends_with("Tensor");
}

[[noreturn]] void unsupported(const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {}, problem,
              "load it with torch and save it again: torch.save writes plain tensors");
}

// torch.save calls a function for a tensor, and leaves what it returns as it is.
void check_is_call(const Value& tensor) {
  if (tensor.construction() != Construction::Reduce) {
    malformed("function is given to NEWOBJ, which takes a class");
  }
  if (tensor.size() != 0) malformed("pickle appends elements to it");
  if (tensor.item_count() != 0)
    unsupported("a tensor with elements that the pickle sets afterwards");
  if (tensor.state()) unsupported("a tensor that is given a state (BUILD), as before torch 0.4");
}

bool is_rebuilding(const Value& callable) {
  return is_parameter(callable) || is_from_type(callable) ||
         (callable.module() == "torch._utils" && callable.name().starts_with("_rebuild_tensor"));
}

NodeId add_extents(ValueTree& tree, const Extents& extents) {
  std::vector<NodeId> numbers;
  for (const uint64_t n : extents) numbers.push_back(tree.integer(static_cast<int64_t>(n)));
  return tree.sequence(Kind::Tuple, numbers);
}

void add_items(const Value& items, std::vector<TensorAttribute>& attributes) {
  for (const auto& [key, value] : items_of(items)) {
    attributes.push_back({key_text(key), value});
  }
}

// A dict, or a pair of them. A class with __setstate__ may be given anything.
void add_state(const Value& state, std::vector<TensorAttribute>& attributes) {
  if (state.is_none()) return;
  if (state.is(Kind::Dict)) return add_items(state, attributes);
  if (!is_pair_of_dicts(state)) return attributes.push_back({"__setstate__", state});
  for (size_t i = 0; i < 2; ++i) add_state(state[i], attributes);
}

struct StorageClass {
  DType dtype;
  std::string_view name;
};
constexpr StorageClass kStorageClasses[] = {
    {DType::Float32, "FloatStorage"},
    {DType::Float64, "DoubleStorage"},
    {DType::Float16, "HalfStorage"},
    {DType::BFloat16, "BFloat16Storage"},
    {DType::UInt8, "ByteStorage"},
    {DType::Int8, "CharStorage"},
    {DType::Int16, "ShortStorage"},
    {DType::Int32, "IntStorage"},
    {DType::Int64, "LongStorage"},
    {DType::Bool, "BoolStorage"},
    {DType::Complex64, "ComplexFloatStorage"},
    {DType::Complex128, "ComplexDoubleStorage"},
};

[[noreturn]] void malformed_type(const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "a storage's persistent ID " + problem);
}

bool states_storage(const Value& id) {
  return id.is(Kind::Tuple) && id.size() >= 5 && id[0].is(Kind::Str) && id[0].text() == "storage" &&
         id[1].is(Kind::Global) && id[2].is(Kind::Str) && id[4].is(Kind::Int);
}

bool is_untyped(const Value& type) {
  return type.is_global("torch.storage", "UntypedStorage") ||
         type.is_global("torch", "UntypedStorage");
}

}  // namespace

bool is_pair_of_dicts(const Value& state) {
  const auto is_part = [](const Value& part) { return part.is_none() || part.is(Kind::Dict); };
  return state.is(Kind::Tuple) && state.size() == 2 && is_part(state[0]) && is_part(state[1]);
}

std::optional<TensorView> as_tensor(const Value& value) {
  if (!value.is(Kind::Object) || !value.callable().is(Kind::Global)) return std::nullopt;
  const Value callable = value.callable();
  if (is_tensor_class(callable)) {
    unsupported("a tensor made by calling " + escaped(callable.module()) + "." +
                escaped(callable.name()));
  }
  if (is_rebuilding(callable)) check_is_call(value);
  const auto inner = without_parameter(value);
  if (!inner) return std::nullopt;
  if (inner->id() == value.id()) {
    return is_from_type(callable) ? rebuilt_from_type(value.args())
                                  : rebuilt(callable.module(), callable.name(), value.args());
  }
  auto view = as_tensor(*inner);
  if (!view) return std::nullopt;
  const Value args = value.args();
  view->is_parameter = true;
  view->requires_grad = as_flag(args[1], "requires_grad");
  view->requires_grad_node = args[1].id();
  refuse_hooks(args[2]);
  if (args.size() == 4) view->attributes = args[3].id();
  return view;
}

std::vector<TensorAttribute> attributes_of(const ValueTree& tree, const TensorView& tensor) {
  std::vector<TensorAttribute> attributes;
  if (tensor.attributes) add_state(tree.value(*tensor.attributes), attributes);
  if (tensor.subclass) attributes.push_back({"__class__", tree.value(*tensor.subclass)});
  if (tensor.requires_grad) {
    attributes.push_back({"requires_grad", tree.value(tensor.requires_grad_node)});
  }
  return attributes;
}

NodeId add_size(ValueTree& tree, const Extents& sizes) {
  const NodeId numbers = add_extents(tree, sizes);
  return tree.object(Construction::Reduce, tree.global("torch", "Size"), tree.tuple({numbers}));
}

NodeId add_ordered_dict(ValueTree& tree) {
  return tree.object(Construction::Reduce, tree.global("collections", "OrderedDict"), tree.tuple());
}

NodeId add_tensor(ValueTree& tree, DType dtype, const Extents& shape,
                  std::string_view storage_key) {
  const std::string_view storage_class = storage_class_name(dtype);
  const bool typed = !storage_class.empty();
  const uint64_t count = element_count(shape) * (typed ? 1 : bytes_per_element(dtype));
  const NodeId type =
      typed ? tree.global("torch", storage_class) : tree.global("torch.storage", "UntypedStorage");
  const NodeId storage =
      tree.persistent_id(tree.tuple({tree.str("storage"), type, tree.str(storage_key),
                                     tree.str("cpu"), tree.integer(static_cast<int64_t>(count))}));
  std::vector<NodeId> args = {storage,
                              tree.integer(0),
                              add_extents(tree, shape),
                              add_extents(tree, row_major_strides(shape)),
                              tree.boolean(false),
                              add_ordered_dict(tree)};
  if (!typed) args.push_back(tree.global("torch", name(dtype)));
  return tree.object(
      Construction::Reduce,
      tree.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"),
      tree.sequence(Kind::Tuple, args));
}

std::string_view storage_class_name(DType dtype) {
  const auto row = std::ranges::find(kStorageClasses, dtype, &StorageClass::dtype);
  return row == std::end(kStorageClasses) ? std::string_view() : row->name;
}

std::optional<DType> as_dtype(const Value& value) {
  if (!value.is(Kind::Global) || value.module() != "torch") return std::nullopt;
  return dtype_named(value.name());
}

StorageId as_storage_id(const Value& persistent_id) {
  const Value id = persistent_id.persistent_id();
  if (!id.is(Kind::Tuple) || id.size() < 5 || id.size() > 6)
    malformed_type("is not a tuple of 5 or 6 items");
  if (!id[0].is(Kind::Str) || id[0].text() != "storage") malformed_type("does not say 'storage'");
  if (!id[1].is(Kind::Global)) malformed_type("does not name a storage class");
  if (!id[2].is(Kind::Str)) malformed_type("has a key that is not a string");
  if (!id[4].is(Kind::Int) || id[4].as_int() < 0) malformed_type("has no element count");
  if (id.size() == 6 && !id[5].is_none()) {
    throw Error(ErrorCode::Unsupported, {}, "a storage that is a view of another storage");
  }
  StorageId storage{id[2].text(), std::nullopt, static_cast<uint64_t>(id[4].as_int())};
  if (is_untyped(id[1])) return storage;
  const auto row = std::ranges::find(kStorageClasses, id[1].name(), &StorageClass::name);
  if (id[1].module() != "torch" || row == std::end(kStorageClasses)) {
    throw Error(ErrorCode::Unsupported, {},
                "storage class " + escaped(id[1].module()) + "." + escaped(id[1].name()));
  }
  storage.dtype = row->dtype;
  return storage;
}

void change_storages(ValueTree& tree, NodeId first, const Document& document,
                     const ChangeStorage& change) {
  const auto end = static_cast<NodeId>(tree.node_count());
  for (NodeId node = first; node < end; ++node) {
    if (!tree.value(node).is(Kind::PersistentId)) continue;
    const Value id = tree.value(node).persistent_id();
    const bool is_storage = id.is(Kind::Tuple) && id.size() >= 5 && id[2].is(Kind::Str);
    std::vector<NodeId> parts;  // legacy files have a sixth
    for (size_t i = 0; is_storage && i < 5; ++i) parts.push_back(id[i].id());
    change(is_storage ? document.find_storage(id[2].text()) : nullptr, parts);
    tree.set_persistent_id(node, tree.sequence(Kind::Tuple, parts));
  }
}

void refuse_storages_of_two_types(const ValueTree& tree, const Where& where) {
  std::map<std::string_view, Value> first_of;
  for (NodeId node = 0; node < tree.node_count(); ++node) {
    const Value value = tree.value(node);
    if (!value.is(Kind::PersistentId)) continue;
    const Value id = value.persistent_id();
    if (!states_storage(id)) continue;
    const Value first = first_of.try_emplace(id[2].text(), id).first->second;
    const bool is_same =
        first[1].is_global(id[1].module(), id[1].name()) && first[4].as_int() == id[4].as_int();
    if (is_same) continue;
    throw Error(
        ErrorCode::Unsupported, where,
        "storage '" + escaped(id[2].text()) +
            "' has two different element types or sizes; torch would use the first for both");
  }
}

}  // namespace ckpt
