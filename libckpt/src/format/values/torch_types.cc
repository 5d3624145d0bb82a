#include "format/values/torch_types.h"

#include <algorithm>
#include <map>

namespace ckpt {
namespace {

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
