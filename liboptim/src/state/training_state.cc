// The tensors of a training state, one by one.
#include <optim/training_state.h>

namespace optim {

std::vector<TensorRef> tensors_of(const TrainingState& state) {
  std::vector<TensorRef> tensors;
  for (const TrainedParam& param : state.params) {
    tensors.push_back(param.weight);
    if (param.master) tensors.push_back(param.master);
    for (const StateTensor& one : param.states) tensors.push_back(one.value);
  }
  return tensors;
}

ckpt::Catalog catalog_of(const TrainingState& state) {
  ckpt::Catalog catalog;
  catalog.format = state.format;
  for (const TensorRef& tensor : tensors_of(state)) catalog.tensors.push_back(*tensor);
  catalog.index();
  return catalog;
}

}  // namespace optim
