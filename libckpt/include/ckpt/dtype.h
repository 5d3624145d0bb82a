#pragma once

#include <complex>
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

// The element type that a C++ type holds. None for 16 and 8 bits of floating point, which C++20 has
// no types for, and for bool, of which a vector is no memory.
template <class T>
struct DTypeOf;
template <DType dtype>
struct DTypeIs {
  static constexpr DType kValue = dtype;
};
// clang-format off
template <> struct DTypeOf<float> : DTypeIs<DType::Float32> {};
template <> struct DTypeOf<double> : DTypeIs<DType::Float64> {};
template <> struct DTypeOf<uint8_t> : DTypeIs<DType::UInt8> {};
template <> struct DTypeOf<int8_t> : DTypeIs<DType::Int8> {};
template <> struct DTypeOf<int16_t> : DTypeIs<DType::Int16> {};
template <> struct DTypeOf<int32_t> : DTypeIs<DType::Int32> {};
template <> struct DTypeOf<int64_t> : DTypeIs<DType::Int64> {};
template <> struct DTypeOf<uint16_t> : DTypeIs<DType::UInt16> {};
template <> struct DTypeOf<uint32_t> : DTypeIs<DType::UInt32> {};
template <> struct DTypeOf<uint64_t> : DTypeIs<DType::UInt64> {};
template <> struct DTypeOf<std::complex<float>> : DTypeIs<DType::Complex64> {};
template <> struct DTypeOf<std::complex<double>> : DTypeIs<DType::Complex128> {};
// clang-format on

}  // namespace ckpt
