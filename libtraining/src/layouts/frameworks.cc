// The frameworks whose training states are read: a line each.
#include "layouts/frameworks.h"

#include <algorithm>
#include <utility>

#include <ckpt/error.h>

#include "args/checkpoint_kind.h"
#include "grid/whole_states.h"

namespace optim {

std::vector<const Framework*>& frameworks() {
  static std::vector<const Framework*> table = {&kMegatron, &kMegatronFsdp};
  return table;
}

bool has_training_state(const OpenedTraining& checkpoint) {
  return std::ranges::any_of(
      frameworks(), [&](const Framework* framework) { return framework->has_state(checkpoint); });
}

FiledState read_training_state(const OpenedTraining& checkpoint, const ReadOptions& options) {
  try {
    for (const Framework* const framework : frameworks()) {
      auto state = framework->read(checkpoint, options);
      if (!state) continue;
      require_whole_states(*state, checkpoint);
      return std::move(*state);
    }
  } catch (ckpt::Error& error) {
    if (checkpoint.was_root()) error.below(checkpoint.folder().filename().string());
    if (error.code() == ckpt::ErrorCode::Unsupported) error.hinted(what_works_on(checkpoint));
    throw;
  }
  refuse_kind(checkpoint, "a training checkpoint of Megatron");
}

}  // namespace optim
