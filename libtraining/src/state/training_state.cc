// What a training state is asked for: its tensors one by one, and the arguments of its run.
#include <training/training_state.h>

#include <ckpt/error.h>

#include "state/state_values.h"

namespace optim {

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

}  // namespace optim
