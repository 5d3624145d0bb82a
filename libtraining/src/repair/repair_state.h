#pragma once

#include <memory>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/repair.h>

namespace optim {

// A training state as it is carried, and where its bytes come from.
struct RepairedState {
  FiledState state;
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // null: the checkpoint's own
  std::vector<RepairFinding> repairs;                   // that were asked for, in their order
};

// What is wrong with a state that was read, of kinds that are not of the common state. Reads
// masters and weights of parameters that may be displaced, and changes nothing.
RepairFinding find_shift(const FiledState& state, const OpenedTraining& source);
RepairFinding find_group_order(const FiledState& state);

// Mends what options ask for. Throws Corrupt where that cannot be mended; for elements that are in
// no file unless options accept it, and for groups of another order unless options ask for them.
RepairedState repair_state(FiledState state, const OpenedTraining& source,
                           const RepairOptions& options);

}  // namespace optim
