#pragma once

#include <optional>
#include <string>

#include <ckpt/value.h>

namespace optim {

// What tells values of settings apart; nullopt for what is neither a number nor text, nor a list of
// them.
std::optional<std::string> signature_of(const ckpt::Value& value);

}  // namespace optim
