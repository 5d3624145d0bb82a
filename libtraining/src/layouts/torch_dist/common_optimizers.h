#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <optim/param_group.h>
#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/common_state.h"
#include "grid/layer_wise_view.h"

namespace optim {

struct CommonStateOf {
  const OpenedTraining& source;
  const CommonState& state;
  std::map<uint32_t, const Filing*> by_hooks = {};  // of which it says nothing but their form
};

// What the common state of a torch_dist checkpoint says of its optimizers, which are those of
// `groups`: parameter groups, step counts, further keys. Values go to `common`, the rest to
// view.chain. Throws Corrupt where the chain or its groups are not those of the model's parameters.
void read_common_optimizers(const CommonStateOf& from, const std::vector<ParamGroup>& groups,
                            CommonBuilder& common, TrainingState& view);

}  // namespace optim
