// What a training state is asked for: its tensors one by one, and the arguments of its run.
#include <memory>

#include <ckpt/error.h>
#include <training/training_state.h>

#include "state/state_values.h"

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

std::vector<TensorRef> tensors_of(const TrainingState& state) {
  std::vector<TensorRef> tensors;
  size_t count = 0;
  for (const TrainedParam& param : state.params) count += 2 + param.states.size();
  tensors.reserve(count);
  for (const TrainedParam& param : state.params) {
    tensors.push_back(param.weight);
    if (param.master) tensors.push_back(param.master);
    for (const StateTensor& one : param.states) tensors.push_back(one.value);
  }
  return tensors;
}

ckpt::Catalog catalog_of(const TrainingState& state) {
  ckpt::Catalog catalog;
  for (const TensorRef& tensor : tensors_of(state)) catalog.tensors.push_back(*tensor);
  catalog.index();
  return catalog;
}

ckpt::Value TrainingState::args() const {
  return attributes_of_args(common.tree.root(), "common state");
}

ckpt::Value attributes_of_args(const ckpt::Value& common_root, const std::string& file) {
  const auto args = common_root.is(ckpt::Kind::Dict) ? common_root.find("args") : std::nullopt;
  if (!args || !args->is(ckpt::Kind::Object) || !args->state() ||
      !args->state()->is(ckpt::Kind::Dict)) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {file, std::nullopt, "/args"},
                      "expected an argparse.Namespace with the training arguments");
  }
  return *args->state();
}

bool holds_bytes(const ckpt::Document& extra_state) {
  const ckpt::Value root = extra_state.tree.root();
  if (root.is_none()) return false;
  const auto tensor = ckpt::as_tensor(root);
  return !tensor || ckpt::element_count(tensor->shape) != 0;
}

// Tensors inside of an object, which no catalog lists.
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
