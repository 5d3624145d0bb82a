#pragma once

#include <optional>
#include <string_view>

#include <ckpt/value.h>

namespace optim {

// The value that a JSON pointer names below `root`: "/args/@lr" (an attribute of an object),
// "/0/optimizer/param_groups/1", "".
std::optional<ckpt::Value> value_at(const ckpt::Value& root, std::string_view pointer);

}  // namespace optim
