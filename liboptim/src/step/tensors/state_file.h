#pragma once

#include <filesystem>

#include <optim/state_dict.h>

namespace optim {

// A state dict of maps, lists, scalars and tensors as one torch.save file. Throws AlreadyExists,
// IoFailure; Unsupported for sharded leaves.
void write_state_file(const std::filesystem::path& file, const StateValue& state);

// Tuples come back as lists. Throws what Checkpoint::open throws; Unsupported for other objects.
StateValue read_state_file(const std::filesystem::path& file);

}  // namespace optim
