#pragma once

#include <optional>
#include <string_view>

#include <ckpt/dtype.h>
#include <ckpt/error.h>
#include <ckpt/value_tree.h>

namespace ckpt {

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

// torch takes the first mention of a storage for all: Error(Unsupported, where) if two differ in
// type or size.
void refuse_storages_of_two_types(const ValueTree& tree, const Where& where);

}  // namespace ckpt
