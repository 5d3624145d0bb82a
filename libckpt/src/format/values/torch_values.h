#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/dtype.h>
#include <ckpt/error.h>
#include <ckpt/value_tree.h>

namespace ckpt {

// A tensor subclass that wraps other tensors, as torch.save writes it:
// _rebuild_from_type_v2(_rebuild_wrapper_subclass, class, arguments, state).
struct WrappedTensor {
  Value type;   // a Global
  Value args;   // (class, dtype, size, strides, ...)
  Value state;  // what the class's __getstate__ gave, or (its __dict__, its slots)
};
std::optional<WrappedTensor> as_wrapped(const Value& value);

// Where the search for tensors met one: `first_tensor` is the index of the first tensor in it.
struct WrappedAt {
  std::string pointer;
  NodeId node = kNoNode;
  size_t first_tensor = 0;
};
struct FoundTensors {
  std::vector<TensorAt> tensors;
  std::vector<WrappedAt> wrapped;
};
FoundTensors find_tensors(const Value& root);  // both in the order of the file

// Whether a state is that of an instance and that of its slots (torch._utils _set_obj_state).
bool is_pair_of_dicts(const Value& state);
// An attribute in a state that is a dict, or a tuple of dicts and None.
std::optional<Value> attribute_in(const Value& state, std::string_view name);
// Of an object that was built so.
std::optional<Value> attribute_of(const Value& object, std::string_view name);
// Of a tuple, a list or a torch.Size; nullopt: it is none, or not of sizes.
std::optional<Extents> sizes_in(const Value& value);
// Of an attribute of that.
std::optional<Extents> sizes_at(const std::optional<Value>& object, std::string_view name);

// The mesh of ranks of a DTensor, in words and as sizes.
struct RankMesh {
  std::string names;                   // "('fsdp',)"; empty where it has none
  std::optional<Extents> shape;        // ranks in each dimension
  std::optional<Extents> coordinates;  // of the rank that saved
  std::optional<int64_t> rank;         // that saved
};
RankMesh read_mesh(const Value& value);
std::string placement_text(const Value& placement);  // "Shard(0)"
std::string class_name_of(const Value& object);

// torch's typed storage class of an element type: BFloat16 -> "BFloat16Storage"; empty for those
// that have none and are stored as torch.storage.UntypedStorage (float8, uint16/32/64, complex32).
std::string_view storage_class_name(DType dtype);

// torch.bfloat16 and the like, as a pickle states it.
std::optional<DType> as_dtype(const Value& value);

// A storage as the persistent id ('storage', class, key, location, numel[, view]) states it.
struct StorageId {
  std::string_view key;
  std::optional<DType> dtype;  // nullopt: untyped, `count` is bytes
  uint64_t count = 0;          // elements
};
// Error(Corrupt) when `persistent_id` is no such tuple; Error(Unsupported) for storage classes that
// Shardwise does not know (quantised).
StorageId as_storage_id(const Value& persistent_id);

// Calls change(storage, parts) for each persistent ID among the nodes from `first` on, and puts the
// tuple of `parts`, as it leaves them, in its place: ('storage', class, key, location, numel).
// `storage`: of the document; null where the ID names none, and then there may be no parts.
using ChangeStorage = std::function<void(const StorageRecord* storage, std::vector<NodeId>& parts)>;
void change_storages(ValueTree& tree, NodeId first, const Document& document,
                     const ChangeStorage& change);

// torch takes the first mention of a storage for all: Error(Unsupported, where) if two differ in
// type or size.
void refuse_storages_of_two_types(const ValueTree& tree, const Where& where);

}  // namespace ckpt
