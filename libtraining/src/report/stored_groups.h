#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ckpt/value.h>
#include <training/groups.h>

namespace optim {

// All of a stored group but its parameters.
std::vector<std::pair<std::string, ckpt::Value>> settings_of(const ckpt::Value& group);

// The groups that files of any training loop store, their parameters by the names that the files
// prove, and which rank of a torch_dist folder wrote which state. Where all are named it clears
// report.unnamed_reason; it says more in it where they are not.
void add_stored(const OpenedTraining& checkpoint, GroupReport& report);

}  // namespace optim
