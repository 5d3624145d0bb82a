#pragma once

#include <string>
#include <string_view>

#include <training/model_facts.h>

#include "model/model_rules.h"

namespace optim {

// For a hint: the row of --model-rules that would be enough for a parameter of the model, as JSON.
// What nobody can know stands in capitals, and behind it what it may be. Segments are those that
// `rules` have for it, with the rows that args do not give to be filled in.
std::string enough_row(std::string_view name, const TensorSharing& sharing,
                       const ModelRules& rules);

}  // namespace optim
