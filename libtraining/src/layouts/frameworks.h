#pragma once

#include <string_view>
#include <vector>

#include <training/layer_wise_checkpoint.h>

namespace optim {

// Whose checkpoints a training state is read from.
struct Framework {
  std::string_view name;
  // Whether a checkpoint states that it holds one. Reads no payload.
  bool (*has_state)(const OpenedTraining& checkpoint);
  // Throws as name_layer_wise().
  FiledState (*read)(const OpenedTraining& checkpoint, const ReadOptions& options);
};

extern const Framework kMegatron;

// All of them; the first that knows a checkpoint reads it.
std::vector<const Framework*>& frameworks();

}  // namespace optim
