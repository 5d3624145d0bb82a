#pragma once

#include <optional>
#include <set>
#include <string>

#include <training/opened_training.h>

namespace optim {

// The parameters that have no place in the flat buffers of distrib_optim.pt or dp_reshardable, as
// frozen ones: in the order of a buffer, those to whose weights what lies in their places does not
// round. nullopt where there are none or that does not say; whether the buffers then hold all
// others is for their reader to tell. Throws Unsupported where either of two could be the frozen
// one. Reads the beginning of each weight and master.
std::optional<std::set<std::string>> find_frozen_in_buffers(const OpenedTraining& checkpoint);

}  // namespace optim
