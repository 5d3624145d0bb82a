#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ckpt/error.h>

namespace test {

// The ckpt::Error that a call ends in, if it does.
template <typename Call>
std::optional<ckpt::Error> error_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const ckpt::Error& error) {
    return error;
  }
  return std::nullopt;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace test
