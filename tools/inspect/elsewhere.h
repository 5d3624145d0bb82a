#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <common/console.h>

namespace tools::inspect {

// Iteration folders of a root that were not looked at, since they are links that lead out of it.
void warn_of_elsewhere(Console& console, const std::vector<std::string>& names);
nlohmann::json names_to_json(const std::vector<std::string>& names);

}  // namespace tools::inspect
