#pragma once

#include <optional>

#include <ckpt/document.h>
#include <training/opened_training.h>

namespace optim {

// The random states in state dicts of one rank of the model, as Megatron has them in memory: a list
// of one dictionary. nullopt where there are none, or those of several ranks.
std::optional<ckpt::Document> random_states_of_dicts(const OpenedTraining& source);

}  // namespace optim
