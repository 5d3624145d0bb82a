#pragma once

#include <ckpt/value.h>
#include <training/opened_training.h>
#include <training/training_state.h>

// What Megatron's use_precision_aware_optimizer makes of the state of a DistributedOptimizer.
namespace optim {

// Masters that are remainders (state/remainders.h) become states; which they are, their type says:
// int16 in dp_reshardable and up to 0.14. Elsewhere they lie as integers in float32: then `args`
// and the content of some of them say it, before anything else is said of them. Throws Corrupt
// where an optimizer has both types, Unsupported for weights that have no remainders and for
// moments whose scales are not stored.
// `state`: its masters were read, as whole tensors, and its parameters know their optimizers.
void take_remainders(const ckpt::Value& args, const OpenedTraining& source, TrainingState& state);

}  // namespace optim
