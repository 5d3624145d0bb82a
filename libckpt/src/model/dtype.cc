#include <ckpt/dtype.h>

#include <algorithm>
#include <array>
#include <cstddef>

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

}  // namespace

std::string_view name(DType dtype) { return row(dtype).name; }

uint64_t bytes_per_element(DType dtype) { return row(dtype).bytes; }

std::optional<DType> dtype_named(std::string_view torch_name) {
  const auto found = std::ranges::find(kRows, torch_name, &Row::name);
  if (found == kRows.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace ckpt
