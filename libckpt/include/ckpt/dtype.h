#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ckpt/export.h>

namespace ckpt {

// Element types under torch's names. All are stored little-endian.
enum class DType : uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  UInt8,
  Int8,
  Int16,
  Int32,
  Int64,
  UInt16,
  UInt32,
  UInt64,
  Bool,
  Complex32,
  Complex64,
  Complex128,
  Float8E4M3FN,
  Float8E4M3FNUZ,
  Float8E5M2,
  Float8E5M2FNUZ,
  Float8E8M0FNU,
};

CKPT_EXPORT std::string_view name(DType dtype);       // torch's, without "torch.": "bfloat16"
CKPT_EXPORT uint64_t bytes_per_element(DType dtype);  // 1, 2, 4, 8 or 16
CKPT_EXPORT std::optional<DType> dtype_named(std::string_view torch_name);

}  // namespace ckpt
