#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tools::inspect {

// Numbers as a row of small bars from the smallest to the largest, one character each, all in the
// middle where they are equal but for the last digits; blank where there is none, "!" for NaN and
// infinity. `is_utf8`: block elements, else ASCII.
std::string sparkline(const std::vector<std::optional<double>>& values, bool is_utf8);

}  // namespace tools::inspect
