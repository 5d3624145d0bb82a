#include <ckpt/dtype.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>

#include <ckpt/error.h>
#include <ckpt/slice.h>

#include "model/element.h"

namespace ckpt {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array kRows = {
    Row{DType::Float32, "float32", 4},
    Row{DType::Float64, "float64", 8},
    Row{DType::Float16, "float16", 2},
    Row{DType::BFloat16, "bfloat16", 2},
    Row{DType::UInt8, "uint8", 1},
    Row{DType::Int8, "int8", 1},
    Row{DType::Int16, "int16", 2},
    Row{DType::Int32, "int32", 4},
    Row{DType::Int64, "int64", 8},
    Row{DType::UInt16, "uint16", 2},
    Row{DType::UInt32, "uint32", 4},
    Row{DType::UInt64, "uint64", 8},
    Row{DType::Bool, "bool", 1},
    Row{DType::Complex32, "complex32", 4},
    Row{DType::Complex64, "complex64", 8},
    Row{DType::Complex128, "complex128", 16},
    Row{DType::Float8E4M3FN, "float8_e4m3fn", 1},
    Row{DType::Float8E4M3FNUZ, "float8_e4m3fnuz", 1},
    Row{DType::Float8E5M2, "float8_e5m2", 1},
    Row{DType::Float8E5M2FNUZ, "float8_e5m2fnuz", 1},
    Row{DType::Float8E8M0FNU, "float8_e8m0fnu", 1},
};

constexpr bool rows_follow_the_enumeration() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return kRows.size() == static_cast<size_t>(DType::Float8E8M0FNU) + 1;
}
static_assert(rows_follow_the_enumeration());

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

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

std::string_view name(DType dtype) { return row(dtype).name; }

uint64_t bytes_per_element(DType dtype) { return row(dtype).bytes; }

std::optional<DType> dtype_named(std::string_view torch_name) {
  const auto found = std::ranges::find(kRows, torch_name, &Row::name);
  if (found == kRows.end()) return std::nullopt;
  return found->dtype;
}

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
