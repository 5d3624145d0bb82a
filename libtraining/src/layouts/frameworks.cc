// The frameworks whose training states are read: a line each.
#include "layouts/frameworks.h"

#include <algorithm>

#include <ckpt/error.h>
#include <training/megatron_folders.h>

#include "args/checkpoint_kind.h"
#include "grid/whole_states.h"

namespace optim {
namespace {

const Framework* framework_of(const OpenedTraining& checkpoint) {
  const auto found = std::ranges::find_if(
      frameworks(), [&](const Framework* one) { return one->has_state(checkpoint); });
  return found == frameworks().end() ? nullptr : *found;
}

}  // namespace

std::vector<const Framework*>& frameworks() {
  static std::vector<const Framework*> table = {&kMegatron};
  return table;
}

bool is_layer_wise(const OpenedTraining& checkpoint) { return framework_of(checkpoint) != nullptr; }

FiledState name_layer_wise(const OpenedTraining& checkpoint, const ReadOptions& options) {
  const Framework* const found = framework_of(checkpoint);
  const bool may_be_read = checkpoint.catalog().format != ckpt::Format::Safetensors;
  if (found == nullptr && (!may_be_read || !is_megatron(checkpoint))) {
    refuse_kind(checkpoint, "a training checkpoint of Megatron");
  }
  try {
    FiledState state = (found == nullptr ? kMegatron : *found).read(checkpoint, options);
    require_whole_states(state, checkpoint);
    return state;
  } catch (ckpt::Error& error) {
    if (checkpoint.was_root()) error.below(checkpoint.folder().filename().string());
    if (error.code() == ckpt::ErrorCode::Unsupported) error.hinted(what_works_on(checkpoint));
    throw;
  }
}

}  // namespace optim
