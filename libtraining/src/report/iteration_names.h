#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ckpt/limits.h>
#include <training/lineage.h>

namespace optim {

struct NamedIterations {
  std::vector<NamedIteration> folders;  // by naming, then by number
  std::vector<std::string> elsewhere;   // links out of the root that are not followed
};

// The folders in a root that Megatron or another program names after an iteration. Throws NotFound
// where there is no root, IoFailure.
NamedIterations find_iterations(const std::filesystem::path& root, const ckpt::Limits& limits);

// "iter_0000100, checkpoint-100, ...": what could have been found.
std::string iteration_names();

}  // namespace optim
