#pragma once

#include <string_view>

namespace optim {

// Whether `a` comes before `b` where numbers in them count as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace optim
