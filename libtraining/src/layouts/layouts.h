#pragma once

#include <optional>

#include <training/layer_wise_checkpoint.h>
#include <training/training_state.h>

// How what lies in a folder is filed, by what it states of itself.
namespace optim {

struct StatedFiling {
  const Filing* filing;    // of the chain; kDealt of a LayerWise one, whatever is beside it
  const Release* release;  // that files so
};
// nullopt where read_training_state() reads nothing that is filed so.
std::optional<StatedFiling> stated_filing(const OpenedTraining& checkpoint);

}  // namespace optim
