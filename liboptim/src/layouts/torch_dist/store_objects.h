#pragma once

#include <ckpt/checkpoint.h>
#include <optim/training_state.h>

#include "grid/layer_wise_view.h"

// Objects of a torch_dist folder beside the common state and those of flat buckets: what modules
// keep beside their parameters (KEY._extra_state/shard_L.E_COUNTS), random states
// (rng_state/shard_PP.TP_COUNTS), and counters of ranks (rerun_state_machine...).
namespace optim {

struct StoreObjects {
  const ckpt::Checkpoint& source;
  const KeyRules& rules;
};
// Into model, extra states, random states and rank objects of `view`. Throws Unsupported for an
// object that is not known, Corrupt for one that does not fit the grid and the model.
void read_store_objects(const StoreObjects& from, CommonBuilder& common, TrainingState& view);

// What an object holds: torch.save was given a list of it alone. Throws Corrupt for another value.
ckpt::Value only_object(const ckpt::Document& document, const std::string& key);

}  // namespace optim
