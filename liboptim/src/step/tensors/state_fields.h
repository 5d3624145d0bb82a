#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string_view>

#include <optim/state_dict.h>

namespace optim {

// Reading state dicts: errors are InvalidArgument with the path of what is wrong.
const StateDict& as_dict(const StateValue& value, std::string_view path);
const StateList& as_list(const StateValue& value, std::string_view path);
const StateValue& at(const StateDict& dict, const StateKey& key, std::string_view path);
double number(const StateValue& value, std::string_view path);  // bool, int or float
at::Tensor tensor(const StateValue& value, std::string_view path);

// `value`, or what a LocalNonpersistentObject holds.
const StateValue& unwrapped(const StateValue& value);

// A state dict of maps, lists, scalars and tensors as one torch.save file. Throws AlreadyExists,
// IoFailure; Unsupported for sharded leaves.
void write_state_file(const std::filesystem::path& file, const StateValue& state);

// Tuples come back as lists. Throws what Checkpoint::open throws; Unsupported for other objects.
StateValue read_state_file(const std::filesystem::path& file);

}  // namespace optim
