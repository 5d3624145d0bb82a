#pragma once

#include <string>

#include <training/opened_training.h>

namespace optim {

// Optimizer state that a model's file repeats of its writer's, as its value of `optimizer`: throws
// Corrupt where the two differ, as files of different moments do. Where their archives state the
// same checksums of storages that are viewed alike, no payload is read (decision 0072).
void check_repeated_state(const OpenedTraining& source, const std::string& model_file,
                          const std::string& rank_file);

}  // namespace optim
