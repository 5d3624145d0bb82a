#include "model/element.h"

#include <charconv>

#include <ckpt/error.h>
#include <ckpt/slice.h>

namespace ckpt {
namespace {

template <class Number>
std::string shortest(Number number) {
  char buffer[40];
  const auto result = std::to_chars(buffer, std::end(buffer), number);
  return std::string(buffer, result.ptr);
}

template <class Element>
std::string number_text(const std::byte* at) {
  const auto bits = load_bits<Element>(at);
  if constexpr (!Element::kIsFloat) {
    return std::to_string(bits);
  } else {
    const double value = Element::value(bits);
    if (std::isnan(value)) return "nan";
    // A float's shortest digits are those of the narrower type: 0.1, not 0.10000000149011612.
    return sizeof(bits) <= 4 ? shortest(static_cast<float>(value)) : shortest(value);
  }
}

}  // namespace

std::string element_text(DType dtype, const std::byte* at) {
  if (dtype == DType::Bool) return *at == std::byte{0} ? "False" : "True";
  return visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    const std::string first = number_text<Element>(at);
    if (!is_complex(dtype)) return first;
    const std::string second = number_text<Element>(at + sizeof(typename Element::Bits));
    return "(" + first + (second.starts_with('-') ? "" : "+") + second + "j)";
  });
}

std::string element_text(DType dtype, std::span<const std::byte> element) {
  if (element.size() != bytes_per_element(dtype)) {
    throw Error(ErrorCode::InvalidArgument, {}, "an element has another count of bytes");
  }
  return element_text(dtype, element.data());
}

}  // namespace ckpt
