#pragma once

#include <optional>
#include <vector>

#include <ckpt/document.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "args/common_state.h"

// Reads torch_dist folders.
namespace optim {

// What lies in a store, under Megatron's keys.
struct StoredState {
  const OpenedTraining& source;  // that has the bytes
  const ckpt::Catalog& catalog;
  const CommonState& common;
  bool keys_are_names = false;  // of the model's tensors: as its modules call them, on no rank
};

// `filing`: of the chain's optimizers, but for those of which the store shows another one.
FiledState read_store(const StoredState& stored, const Filing& filing, const ReadOptions& options);
inline FiledState read_store_folder(const OpenedTraining& checkpoint, const Filing& filing,
                                    const ReadOptions& options) {
  return read_store({checkpoint, keys_of(checkpoint), checkpoint.require_common_state()}, filing,
                    options);
}

// The state dicts of --ckpt-format torch_dcp (FSDP2) and fsdp_dtensor (Megatron-FSDP), as if a
// DistributedOptimizer had filed them. holds_state_dicts() of its catalog is true.
FiledState read_state_dicts(const OpenedTraining& checkpoint, const ReadOptions& options);

// The random states in state dicts of one rank of the model, as Megatron has them in memory: a list
// of one dictionary. nullopt where there are none, or those of several ranks.
std::optional<ckpt::Document> random_states_of_dicts(const OpenedTraining& source);

// The step that all parameters have taken, of which torch.optim.AdamW counts each its own. Throws
// Unsupported where they differ, or are no numbers of a type that counts steps; Corrupt where there
// are not as many as parameters.
double common_step(const std::vector<const ckpt::TensorEntry*>& steps, size_t param_count,
                   const OpenedTraining& source);

}  // namespace optim
