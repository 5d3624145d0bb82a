#include "common/environment.h"

#include <cstdlib>

#include <ckpt/error.h>

namespace tools {

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number_variable(const char* name, int least, int most) {
  const std::string text = variable(name).value_or("");
  const bool is_number =
      !text.empty() && text.size() < 9 && text.find_first_not_of("0123456789") == std::string::npos;
  const int value = is_number ? std::stoi(text) : -1;
  if (!is_number || value < least || value > most) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      std::string("the environment variable ") + name + " is '" +
                          ckpt::escaped(text) + "', no number from " + std::to_string(least) +
                          " to " + std::to_string(most));
  }
  return value;
}

}  // namespace tools
