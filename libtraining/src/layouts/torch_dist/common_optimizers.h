#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ckpt/target.h>
#include <optim/param_group.h>
#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/common_state.h"
#include "grid/build_state.h"

namespace optim {

struct CommonStateOf {
  const OpenedTraining& source;
  const CommonState& state;
  std::map<uint32_t, const Filing*> by_hooks = {};  // of which it says nothing but their form
};

// What the common state of a torch_dist checkpoint says of its optimizers, which are those of
// `groups`: parameter groups, step counts, further keys. Values go to `common`, the rest to
// state.chain. Throws Corrupt where the chain or its groups are not those of the model's
// parameters.
void read_common_optimizers(const CommonStateOf& from, const std::vector<ParamGroup>& groups,
                            CommonBuilder& common, TrainingState& state);

// Puts the model's entries, which come as a store has them, into the order in which Megatron
// registers them, with what it leaves out of a store where it is None. Sets unknown_order.
void order_model(TrainingState& state);

// What a linear layer, or any of TransformerEngine's modules, has beside its weight and Megatron
// stores, by the rules: its extra state, which is None but for FP8. Empty where it has none.
std::string extra_state_beside(const std::string& weight, size_t dimensions,
                               const TrainingState& state);

// What the common state of a torch_dist checkpoint holds that no conversion writes: keys of
// content_metadata that are not known, and the `state` of an optimizer without a step count.
std::vector<ckpt::NotCarried> common_losses(const CommonState& common);

}  // namespace optim
