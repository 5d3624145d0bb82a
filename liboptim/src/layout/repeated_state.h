#pragma once

#include <string>

#include <ckpt/checkpoint.h>

#include "layout/layer_wise_place.h"

namespace optim {

// Optimizer state that a rank's file holds and another one repeats: throws Corrupt where the two
// differ, as files of different moments do. Where their archives state the same checksums of
// storages that are viewed alike, no payload is read (decision 0072).
void check_repeated_state(const ckpt::Checkpoint& source, const Place& copy,
                          const std::string& original_file);

}  // namespace optim
