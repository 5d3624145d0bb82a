#pragma once

#include <string>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>

#include "model/model_rules.h"

// Rows of --model-rules: a wrong split cuts weight, master and states alike, so that no proof of
// one by the other can find it.
namespace optim {

// Where rows say another split than the built-in ones of the same part and name: what the user is
// told of each.
std::vector<std::string> other_splits(const ModelRules& rules);

// Throws Error(Corrupt) where the run's arguments say another number of layers or experts than the
// model has, so that its parts would get wrong names; with rows of --model-rules, also where what
// they put together contradicts any argument.
void refuse_contradicted(const FiledState& state, const OpenedTraining& source, bool has_rules);

}  // namespace optim
