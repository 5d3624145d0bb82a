#pragma once

#include <stop_token>

#include <ckpt/checkpoint.h>
#include <training/training_state.h>

namespace optim {

// For weights that are something else than rounded masters, as kept in fp8 or fp4 and stored
// dequantised: of each parameter at least half of the weights must be as near to their masters as
// such rounding leaves them, which masters of another parameter are not. Reads all of them. Throws
// as refuse_master(); Error(IoFailure, "cancelled") when asked to stop.
void require_near_masters(const TrainingState& state, const ckpt::Checkpoint& source,
                          const std::stop_token& stop);

}  // namespace optim
