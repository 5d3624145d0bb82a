#pragma once

#include <string>

#include <training/filing.h>
#include <training/training_state.h>

namespace optim {

// A training state, and how it lies in a checkpoint, whose container has the tensors.
struct FiledState : TrainingState {
  FiledAs filed;
  std::string folder_name;  // iter_0000003, release
};

}  // namespace optim
