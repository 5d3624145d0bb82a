#pragma once

#include <optional>
#include <set>
#include <string>

#include <training/opened_training.h>

namespace optim {

// Whether rank files of a LayerWise optimizer may belong to a model of which some parameters are
// frozen, which then have neither master nor state: they hold fewer masters than the model has
// weights, and each has the shape of a weight of its own. Reads no payload. Of one model file.
bool may_have_frozen_params(const OpenedTraining& checkpoint);

// The weights that no master rounds to, where every master rounds to one; nullopt where that does
// not say which are frozen. Reads all masters and weights.
std::optional<std::set<std::string>> find_frozen_params(const OpenedTraining& checkpoint);

}  // namespace optim
