#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <training/layer_wise_checkpoint.h>

namespace optim {

// Whose checkpoints a training state is read from.
struct Framework {
  std::string_view name;
  // Whether a checkpoint states that it holds one. Reads no payload.
  bool (*has_state)(const OpenedTraining& checkpoint);
  // nullopt for a checkpoint of others. Throws as read_training_state().
  std::optional<FiledState> (*read)(const OpenedTraining& checkpoint, const ReadOptions& options);
};

extern const Framework kMegatron, kMegatronFsdp;

// All of them; each is asked after those before it.
std::vector<const Framework*>& frameworks();

}  // namespace optim
