#pragma once

#include <memory>

#include <ckpt/catalog.h>
#include <training/training_state.h>

// In which form a target files the state of optimizers, and the training state as that form has it:
// which optimizers there are, what their groups hold, what args say of them. Pure.
namespace optim {

struct TargetForm {
  ckpt::Format container = ckpt::Format::Torch;
  OptimizerSharding sharding = OptimizerSharding::LayerWise;
  StoreLayout era = StoreLayout::April2026;
  // Of LayerWise of August 2026: the DistributedOptimizer's half is dp_reshardable.
  bool is_half_bucketed = false;
  bool is_for_april = false;  // args must not hold what Megatron of April 2026 cannot load
};

// Of a DistributedOptimizer.
bool is_zero1(OptimizerSharding sharding);
// Whether one of its optimizers is: all of them, or the half beside Muon.
bool has_distributed(const TrainingState& state);
// Whether the state of one of them lies in flat buckets.
bool has_bucketed(const TrainingState& state);
// As Megatron and our options spell it: "dp_reshardable".
std::string_view name(OptimizerSharding sharding);

// What is asked for, else what the source has; where the container lacks that, the one that is
// nearest to it. Throws Unsupported, with the possible ones, for a form that the container does not
// have, that is only read, or that has no place for what Muon or another optimizer keeps.
TargetForm target_form(const TrainingState& source, ckpt::Format container,
                       const FormChange& change);

// The source as the form files it at these sizes; null where that is how it is.
// Throws Unsupported where optimizers that become one differ, InvalidArgument for buckets of a form
// that has none.
std::shared_ptr<const TrainingState> filed_as(const TrainingState& source, const TargetForm& form,
                                              const BucketChange& buckets,
                                              const ParallelSizes& sizes);

}  // namespace optim
