#pragma once

#include <optional>
#include <string>

#include <ckpt/value.h>

namespace optim {

// nullopt when both values say the same, else where they differ (an RFC 6901 pointer; "" for the
// values themselves). Dictionaries must agree in order, too: Megatron zips them. Tensors are equal
// when dtype and shape are. No recursion.
std::optional<std::string> first_difference(const ckpt::Value& a, const ckpt::Value& b);

}  // namespace optim
