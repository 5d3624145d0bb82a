#pragma once

#include <string>
#include <string_view>

#include <training/opened_training.h>

namespace optim {

// What a checkpoint is called, by the optimizer in it and its parallel sizes: "a
// DistributedOptimizer (ZeRO-1, dp_reshardable) checkpoint with TP 2 and PP 2".
std::string kind_of_checkpoint(const OpenedTraining& checkpoint);

// What still works on a checkpoint that is refused: for hints.
std::string what_works_on(const OpenedTraining& checkpoint);

// Throws Unsupported for a checkpoint that is not LayerWise, by its kind; `expected` as in
// "expected a LayerWise checkpoint".
[[noreturn]] void refuse_kind(const OpenedTraining& checkpoint, std::string_view expected);

}  // namespace optim
