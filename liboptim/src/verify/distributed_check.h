#pragma once

#include <cstdint>
#include <optional>

#include <ckpt/checkpoint.h>
#include <optim/training_state.h>
#include <optim/verify.h>

namespace optim {

// Whether ranks own ranges of elements of flat buffers, whoever writes them.
bool is_in_flat_buffers(const TrainingState& view);

// The steps that an optimizer of the chain has taken; nullopt where it does not count them.
std::optional<double> step_of(const TrainingState& view, uint32_t optimizer);

// What the optimizers of a DistributedOptimizer checkpoint must have: a step count in each group,
// or in none; in common one step count; and what Megatron-Core up to 0.12 does to their groups when
// it loads them. Adds to findings.
void check_distributed_optimizers(const TrainingState& view, const ckpt::Checkpoint& checkpoint,
                                  VerifyReport& report);

}  // namespace optim
