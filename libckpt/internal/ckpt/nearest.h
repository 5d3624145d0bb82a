#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt {

// Letters to insert, remove, replace, or swap with their neighbour, to make one word of the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `word` may have been meant to be: the first of those at the least distance,
// if no more than a third of the letters differ. Time grows with the product of the lengths, which
// count up to 255 bytes. Pure.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace ckpt
