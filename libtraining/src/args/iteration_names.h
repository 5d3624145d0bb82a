#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/limits.h>
#include <training/named_iteration.h>

namespace optim {

struct NamedIterations {
  std::vector<NamedIteration> folders;  // by naming, then by number
  std::vector<std::string> elsewhere;   // links out of the root that are not followed
};

// The folders in a root that Megatron or another program names after an iteration. Throws NotFound
// where there is no root, IoFailure.
NamedIterations find_iterations(const std::filesystem::path& root, const ckpt::Limits& limits);

// Where in its folder the checkpoint lies.
std::filesystem::path path_of(const NamedIteration& named);

// How many steps the name of a checkpoint's folder says; nullopt where it names none.
std::optional<int64_t> steps_in_name(const std::filesystem::path& folder);

bool is_of_megatron(const NamedIteration& named);

// The folder of an iteration in a root that Megatron did not write; `root` where it did, or where
// that is no root. Throws NotFound, InvalidArgument where two folders have the number.
std::filesystem::path find_iteration(const std::filesystem::path& root, int64_t iteration,
                                     const ckpt::Limits& limits);

// The same of the step that verl's tracker in a root names, or of a step's own folder; `path` where
// it is neither. Throws NotFound where the step is missing, InvalidArgument where it holds an actor
// and a critic.
std::filesystem::path find_step_of_verl(const std::filesystem::path& path,
                                        const ckpt::Limits& limits);

std::string megatron_folder(int64_t iteration);  // "iter_0000100"

// "iter_0000100, checkpoint-100, ...": what could have been found.
std::string iteration_names();

}  // namespace optim
