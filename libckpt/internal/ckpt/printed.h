#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include <ckpt/extents.h>

// Names, shapes and lists as listings, records and messages print them.
namespace ckpt {

// "FILE:KEY", or the key alone where it has no file; a key as printed_key() prints it.
std::string qualified_key(std::string_view file, std::string_view key);

// "a, b, c": texts, numbers or what `text` makes of elements, with a separator between them, but
// none behind empty ones at the front.
template <class Elements, class Text = std::identity>
std::string joined(const Elements& elements, std::string_view separator = ", ",
                   const Text& text = {}) {
  std::string all;
  for (const auto& element : elements) {
    if (!all.empty()) all += separator;
    const auto& one = std::invoke(text, element);
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(one)>>) {
      all += std::to_string(one);
    } else {
      all += one;
    }
  }
  return all;
}

inline std::string shape_text(const Extents& shape) { return "[" + joined(shape) + "]"; }
inline std::string tuple_text(const Extents& shape) { return "(" + joined(shape) + ")"; }

}  // namespace ckpt
