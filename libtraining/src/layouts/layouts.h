#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
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

// The parameters that have no place in the flat buffers of distrib_optim.pt or dp_reshardable, as
// frozen ones: in the order of a buffer, those to whose weights what lies in their places does not
// round. nullopt where there are none or that does not say; whether the buffers then hold all
// others is for their reader to tell. Throws Unsupported where either of two could be the frozen
// one. Reads the beginning of each weight and master.
std::optional<std::set<std::string>> find_frozen_in_buffers(const OpenedTraining& checkpoint);

// How a target files the state of each optimizer, and the training state as it is filed so: which
// optimizers there are, what their groups hold, what args say of them. Pure.

// For each optimizer of the source's chain what is asked for, else what the source has; where the
// container lacks that, the filing that is nearest to it. Throws Unsupported, with the possible
// ones, for a filing that the container does not have, that is only read, or that has no place for
// what Muon or another optimizer keeps.
FiledAs choose_filings(const FiledState& source, ckpt::Format container,
                       const FilingChange& change);

// The source as `target` files it at these sizes, whose `filed` tells of its own chain; null where
// that is how it is. `target`: chosen for this change. Throws Unsupported where optimizers that
// become one differ, InvalidArgument for buckets where there are no flat buffers.
std::shared_ptr<const FiledState> filed_as(const FiledState& source, const FiledAs& target,
                                           const FilingChange& change, const ParallelSizes& sizes);

}  // namespace optim
