#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace semantic {

// What a case found, and how often something was published: a library that refuses everything
// proves nothing.
struct CaseResult {
  std::vector<std::string> faults;
  size_t published = 0, refused = 0;
};

// Each makes the case of a seed in an empty folder and converts it there and back.
CaseResult run_state_dict_case(uint64_t seed, const std::filesystem::path& folder);
CaseResult run_layer_wise_case(uint64_t seed, const std::filesystem::path& folder);

}  // namespace semantic
