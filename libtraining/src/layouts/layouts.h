#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <training/layer_wise_checkpoint.h>
#include <training/training_state.h>

// How what lies in a folder is filed, by what it states of itself.
namespace optim {

struct StatedFiling {
  const Filing* filing;    // of the chain; kDealt of a LayerWise one, whatever is beside it
  const Release* release;  // that files so
};
// nullopt where read_training_state() reads nothing that is filed so.
std::optional<StatedFiling> stated_filing(const OpenedTraining& checkpoint);

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
