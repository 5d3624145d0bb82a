// Tensors as torch.save's pickles state them. The functions named here are never called: their
// arguments say what they would build (torch/_utils.py and torch/_tensor.py document them by name).
#include <string_view>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/limits.h>

#include "base/checked_math.h"
#include "format/torch_types.h"

namespace ckpt {
namespace {

[[noreturn]] void malformed(const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "a tensor's " + problem);
}

const Value require_args(const Value& args, size_t count_min) {
  if (!args.is(Kind::Tuple) || args.size() < count_min) {
    malformed("arguments are no tuple of at least " + std::to_string(count_min));
  }
  return args;
}

Extents as_extents(const Value& value, const char* what) {
  if (!value.is(Kind::Tuple) || value.size() > Limits().dims_max) {
    malformed(std::string(what) + " is no tuple of at most 64 numbers");
  }
  Extents extents;
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is(Kind::Int) || value[i].as_int() < 0) {
      malformed(std::string(what) + " holds something that is no size");
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
    malformed("view leaves its storage of " + std::to_string(capacity) + " elements");
  }
}

// Lazy views: torch conjugates or negates what is stored, whenever it is read.
void refuse_lazy_view(const Value& metadata) {
  if (!metadata.is(Kind::Dict)) return;
  for (const std::string_view bit : {"conj", "neg"}) {
    const auto flag = metadata.find(bit);
    if (!flag || !flag->is(Kind::Bool) || !flag->as_bool()) continue;
    throw Error(ErrorCode::Unsupported, {},
                "a lazy " + std::string(bit) + " view of its storage (resolve_" + std::string(bit) +
                    "() before saving makes it a plain tensor)");
  }
}

// (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]): _rebuild_tensor_v2
// and, with dtype, _v3.
TensorView view_of_storage(const Value& args, bool dtype_given) {
  require_args(args, dtype_given ? 7 : 4);
  if (!args[0].is(Kind::PersistentId)) malformed("storage is no persistent id");
  const StorageId storage = as_storage_id(args[0]);
  TensorView view;
  view.storage_key = storage.key;
  const auto dtype = dtype_given ? as_dtype(args[6]) : storage.dtype;
  if (!dtype) malformed("element type is unknown");
  view.dtype = *dtype;
  const uint64_t unit_bytes = storage.dtype ? bytes_per_element(*storage.dtype) : 1;
  const auto storage_bytes = checked_mul(storage.count, unit_bytes);
  if (!storage_bytes) malformed("storage is too large");
  view.storage_count_bytes = *storage_bytes;
  if (!args[1].is(Kind::Int) || args[1].as_int() < 0) malformed("offset is no count");
  view.offset = static_cast<uint64_t>(args[1].as_int());
  view.shape = as_extents(args[2], "size");
  view.strides = as_extents(args[3], "stride");
  if (view.shape.size() != view.strides.size()) malformed("size and stride differ in length");
  view.requires_grad = args.size() > 4 && args[4].is(Kind::Bool) && args[4].as_bool();
  const size_t metadata = dtype_given ? 7 : 6;
  if (args.size() > metadata) refuse_lazy_view(args[metadata]);
  check_in_storage(view);
  return view;
}

std::optional<TensorView> rebuilt(std::string_view module, std::string_view function,
                                  const Value& args);

// (function, type, args, state): a tensor with attributes, or of a subclass. A subclass that wraps
// other tensors (DTensor) or has a function of its own is an object: its tensors are in its state.
std::optional<TensorView> rebuilt_from_type(const Value& args) {
  require_args(args, 4);
  if (!args[0].is(Kind::Global)) malformed("rebuilding function is no name");
  if (args[0].is_global("torch._utils", "_rebuild_wrapper_subclass")) return std::nullopt;
  auto view = rebuilt(args[0].module(), args[0].name(), args[2]);
  if (!view) return std::nullopt;
  view->attributes = args[3].id();
  return view;
}

std::optional<TensorView> rebuilt(std::string_view module, std::string_view function,
                                  const Value& args) {
  if (module != "torch._utils" || !function.starts_with("_rebuild_")) return std::nullopt;
  if (function == "_rebuild_tensor" || function == "_rebuild_tensor_v2") {
    return view_of_storage(args, false);
  }
  if (function == "_rebuild_tensor_v3") return view_of_storage(args, true);
  throw Error(ErrorCode::Unsupported, {}, "a tensor rebuilt by torch._utils." + escaped(function));
}

bool is_parameter(const Value& callable) {
  return callable.is_global("torch._utils", "_rebuild_parameter") ||
         callable.is_global("torch._utils", "_rebuild_parameter_with_state");
}

// A Parameter holds its tensor as first argument; a loop, since a file may nest them.
std::optional<Value> without_parameter(Value value) {
  for (int depth = 0; depth < 8; ++depth) {
    if (!value.is(Kind::Object) || !value.callable().is(Kind::Global)) return std::nullopt;
    if (!is_parameter(value.callable())) return value;
    value = require_args(value.args(), 2)[0];
  }
  malformed("Parameter is wrapped too often");
}

}  // namespace

std::optional<TensorView> as_tensor(const Value& value) {
  const auto inner = without_parameter(value);
  if (!inner) return std::nullopt;
  const Value callable = inner->callable();
  if (inner->id() != value.id()) {  // a Parameter: (data, requires_grad, hooks)
    auto view = as_tensor(*inner);
    const Value requires_grad = value.args()[1];
    if (view) view->requires_grad = requires_grad.is(Kind::Bool) && requires_grad.as_bool();
    return view;
  }
  if (callable.is_global("torch._tensor", "_rebuild_from_type_v2")) {
    return rebuilt_from_type(inner->args());
  }
  return rebuilt(callable.module(), callable.name(), inner->args());
}

NodeId add_size(ValueTree& tree, const Extents& sizes) {
  std::vector<NodeId> numbers;
  for (const uint64_t size : sizes) numbers.push_back(tree.integer(static_cast<int64_t>(size)));
  return tree.object(Construction::Reduce, tree.global("torch", "Size"),
                     tree.tuple({tree.sequence(Kind::Tuple, numbers)}));
}

NodeId add_ordered_dict(ValueTree& tree) {
  return tree.object(Construction::Reduce, tree.global("collections", "OrderedDict"), tree.tuple());
}

NodeId add_tensor(ValueTree& tree, DType dtype, const Extents& shape,
                  std::string_view storage_key) {
  const auto numbers = [&](const Extents& extents) {
    std::vector<NodeId> ids;
    for (const uint64_t n : extents) ids.push_back(tree.integer(static_cast<int64_t>(n)));
    return tree.sequence(Kind::Tuple, ids);
  };
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
                              numbers(shape),
                              numbers(row_major_strides(shape)),
                              tree.boolean(false),
                              add_ordered_dict(tree)};
  if (!typed) args.push_back(tree.global("torch", name(dtype)));
  return tree.object(
      Construction::Reduce,
      tree.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"),
      tree.sequence(Kind::Tuple, args));
}

}  // namespace ckpt
