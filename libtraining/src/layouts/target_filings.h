#pragma once

#include <memory>

#include <ckpt/catalog.h>
#include <training/filed_state.h>

// How a target files the state of each optimizer, and the training state as it is filed so: which
// optimizers there are, what their groups hold, what args say of them. Pure.
namespace optim {

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
