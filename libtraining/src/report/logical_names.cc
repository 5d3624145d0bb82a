#include "report/logical_names.h"

#include <memory>
#include <utility>

#include <training/layer_wise_checkpoint.h>
#include <training/training_state.h>

namespace optim {
namespace {

struct Named {
  Contents contents;
  std::optional<ckpt::Error> problem;
  bool is_state = false;
};

Named name_all(const OpenedTraining& checkpoint) {
  if (!is_layer_wise(checkpoint)) return {list_contents(checkpoint), std::nullopt, false};
  try {
    const TrainingState state = name_layer_wise(checkpoint);
    return {list_contents(checkpoint, &state), std::nullopt, true};
  } catch (const ckpt::Error& error) {
    if (error.code() == ckpt::ErrorCode::IoFailure) throw;
    return {list_contents(checkpoint), error, true};
  }
}

}  // namespace

LogicalNames::LogicalNames(const OpenedTraining& checkpoint) {
  Named named = name_all(checkpoint);
  problem_ = std::move(named.problem);
  is_state_ = named.is_state;
  for (LogicalTensor& tensor : named.contents.tensors) {
    std::string key = key_of(tensor);
    if (key.empty()) continue;
    keys_.push_back(std::move(key));
    contents_.tensors.push_back(std::move(tensor));
  }
}

}  // namespace optim
