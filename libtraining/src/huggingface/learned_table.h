#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "huggingface/learned_groups.h"

// Groups of a folder's tensors as a table of names: docs/schema/input/name_table.json.
namespace optim {

struct LearnedModel {
  const std::vector<LearnedTensor>& folder;
  const ModelRules& rules;
  uint32_t layers = 0, further = 0;  // of the decoder; of multi-token prediction
  nlohmann::json args = {};          // of the checkpoint
  nlohmann::json config = {};        // config.json of the folder
  uint64_t tokens = 0;               // of the vocabulary
};
// Rows that hold for layers of multi-token prediction, too, stand in one with those of the decoder.
// `left_out`: gets fields of config.json and arguments that no expression can say.
nlohmann::json learned_table(const LearnedGroups& groups, const LearnedModel& model,
                             std::vector<std::string>& left_out);

}  // namespace optim
