#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace ckpt {

// The elements of a sorted vector whose projection is equal to `value`. What
// std::ranges::equal_range returns does not compile with clang 14 and libstdc++ 12, by which the
// fuzz targets are built.
template <class Element, class Value, class Projection>
std::span<const Element> equal_run(const std::vector<Element>& sorted, const Value& value,
                                   Projection projection) {
  const auto first = std::ranges::lower_bound(sorted, value, {}, projection);
  const auto last = std::ranges::upper_bound(first, sorted.end(), value, {}, projection);
  return {first, last};
}

}  // namespace ckpt
