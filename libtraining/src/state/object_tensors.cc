// Tensors inside of an object, which no catalog lists.
#include "state/object_tensors.h"

#include <memory>

#include <ckpt/error.h>

namespace optim {
namespace {

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = key}, std::move(problem));
}

const ckpt::StorageRecord& storage_of(const ckpt::Document& document, const ckpt::TensorView& view,
                                      const std::string& key) {
  const ckpt::StorageRecord* storage = document.find_storage(view.storage_key);
  if (storage == nullptr) corrupt(key, "its storage is not in the archive");
  if (storage->region.bytes.count_bytes != view.storage_count_bytes) {
    corrupt(key, "its storage has " + std::to_string(storage->region.bytes.count_bytes) +
                     " bytes, but the pickle says " + std::to_string(view.storage_count_bytes));
  }
  return *storage;
}

}  // namespace

std::vector<ckpt::TensorEntry> tensors_of_object(const ckpt::Document& document,
                                                 const ckpt::Value& value, const std::string& key) {
  std::vector<ckpt::TensorEntry> tensors;
  for (const ckpt::TensorAt& at : ckpt::tensors_in(value)) {
    const ckpt::TensorView& view = at.view;
    ckpt::TensorEntry tensor{{}, key + at.pointer, view.dtype, view.shape, {}};
    const ckpt::StorageRecord& storage = storage_of(document, view, tensor.key);
    if (ckpt::element_count(view.shape) != 0) {
      tensor.chunks.push_back(
          {ckpt::whole(view.shape), storage.region, 0,
           std::make_shared<ckpt::StridedView>(ckpt::StridedView{view.offset, view.strides})});
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

ckpt::Value only_object(const ckpt::Document& document, const std::string& key) {
  const ckpt::Value root = document.tree.root();
  if (root.is(ckpt::Kind::List) && root.size() == 1) return root[0];
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {".metadata", std::nullopt, key},
                    "is not a list of one object");
}

}  // namespace optim
