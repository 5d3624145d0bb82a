#pragma once

#include <optional>
#include <string>

namespace tools {

// An environment variable that is set and not empty.
std::optional<std::string> variable(const char* name);

// One that is a whole number; throws InvalidArgument, with its name, for anything else.
int number_variable(const char* name, int least, int most);

}  // namespace tools
