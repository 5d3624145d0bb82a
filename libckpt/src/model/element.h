#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include <ckpt/dtype.h>

namespace ckpt {

// One number of a tensor, as its little-endian bits. A complex element is two numbers.
// Elements<F>: Bits, kIsFloat, value(bits) as a double (exact but for 64-bit integers), and for
// floats order(bits): an integer that grows by one from each representable value to the next, equal
// for both zeros, so that a difference is a distance in units in the last place.

template <class Integer>
struct IntegerElement {
  using Bits = Integer;
  static constexpr bool kIsFloat = false;
  static double value(Bits bits) { return static_cast<double>(bits); }
};

// A float with a sign bit, `ExponentBits`, and the rest mantissa, biased as IEEE 754 says. Wide
// enough for float16 and float8_e5m2, which keep the largest exponent for infinity and NaN.
template <class Unsigned, int ExponentBits>
struct IeeeElement {
  using Bits = Unsigned;
  static constexpr bool kIsFloat = true;
  static constexpr int kBits = 8 * sizeof(Unsigned);
  static constexpr int kMantissaBits = kBits - 1 - ExponentBits;
  static constexpr int kExponentMax = (1 << ExponentBits) - 1;
  static constexpr int kBias = kExponentMax / 2;
  static constexpr Unsigned kSign = static_cast<Unsigned>(Unsigned{1} << (kBits - 1));

  static double value(Bits bits) {
    const int exponent = (bits >> kMantissaBits) & kExponentMax;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    const double sign = (bits & kSign) != 0 ? -1.0 : 1.0;
    if (exponent == kExponentMax) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    return sign * magnitude(exponent, mantissa, kBias);
  }
  static int64_t order(Bits bits) {
    const int64_t magnitude_bits = bits & static_cast<Unsigned>(~kSign);
    return (bits & kSign) != 0 ? -magnitude_bits : magnitude_bits;
  }
  static double magnitude(int exponent, int mantissa, int bias) {
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - kMantissaBits);
    return std::ldexp(mantissa + (1 << kMantissaBits), exponent - bias - kMantissaBits);
  }
};

// The upper half of a float32.
struct BFloat16Element : IeeeElement<uint16_t, 8> {
  static double value(uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
  }
};

// float8 without infinities. "FN": all ones is NaN. "FNUZ": the bits of minus zero are NaN, the
// bias is one larger (OCP 8-bit floating point; arXiv:2206.02915).
template <int ExponentBits, bool Fnuz>
struct FiniteFloat8 : IeeeElement<uint8_t, ExponentBits> {
  using Base = IeeeElement<uint8_t, ExponentBits>;
  static double value(uint8_t bits) {
    const bool is_nan = Fnuz ? bits == 0x80 : (bits & 0x7F) == 0x7F;
    if (is_nan) return std::numeric_limits<double>::quiet_NaN();
    const int exponent = (bits >> Base::kMantissaBits) & Base::kExponentMax;
    const int mantissa = bits & ((1 << Base::kMantissaBits) - 1);
    const double magnitude = Base::magnitude(exponent, mantissa, Base::kBias + (Fnuz ? 1 : 0));
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
  }
};

// float8_e8m0fnu: a power of two without sign; 0xFF is NaN (OCP microscaling formats).
struct PowerOfTwoElement {
  using Bits = uint8_t;
  static constexpr bool kIsFloat = true;
  static double value(Bits bits) {
    return bits == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
  }
  static int64_t order(Bits bits) { return bits; }
};

template <class Float, class Unsigned>
struct NativeFloatElement {
  using Bits = Unsigned;
  static constexpr bool kIsFloat = true;
  static double value(Bits bits) { return static_cast<double>(std::bit_cast<Float>(bits)); }
  static int64_t order(Bits bits) {
    const auto magnitude = static_cast<int64_t>(bits & (~Unsigned{0} >> 1));
    return (bits >> (8 * sizeof(Unsigned) - 1)) != 0 ? -magnitude : magnitude;
  }
};

template <class Element>
typename Element::Bits load_bits(const std::byte* at) {
  typename Element::Bits bits;
  std::memcpy(&bits, at, sizeof bits);  // payloads and the machines we build for: little-endian
  return bits;
}

// Calls visit(Element()) with the element type of `dtype`; of a complex type, that of its two
// numbers.
template <class Visit>
decltype(auto) visit_element(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::Float32:
    case DType::Complex64: return visit(NativeFloatElement<float, uint32_t>());
    case DType::Float64:
    case DType::Complex128: return visit(NativeFloatElement<double, uint64_t>());
    case DType::Float16:
    case DType::Complex32: return visit(IeeeElement<uint16_t, 5>());
    case DType::BFloat16: return visit(BFloat16Element());
    case DType::Float8E5M2: return visit(IeeeElement<uint8_t, 5>());
    case DType::Float8E4M3FN: return visit(FiniteFloat8<4, false>());
    case DType::Float8E4M3FNUZ: return visit(FiniteFloat8<4, true>());
    case DType::Float8E5M2FNUZ: return visit(FiniteFloat8<5, true>());
    case DType::Float8E8M0FNU: return visit(PowerOfTwoElement());
    case DType::Int8: return visit(IntegerElement<int8_t>());
    case DType::Int16: return visit(IntegerElement<int16_t>());
    case DType::Int32: return visit(IntegerElement<int32_t>());
    case DType::Int64: return visit(IntegerElement<int64_t>());
    case DType::UInt16: return visit(IntegerElement<uint16_t>());
    case DType::UInt32: return visit(IntegerElement<uint32_t>());
    case DType::UInt64: return visit(IntegerElement<uint64_t>());
    case DType::UInt8:
    case DType::Bool: break;
  }
  return visit(IntegerElement<uint8_t>());
}

constexpr bool is_complex(DType dtype) {
  return dtype == DType::Complex32 || dtype == DType::Complex64 || dtype == DType::Complex128;
}

// An element as text: True, -3, 0.1 (the shortest digits that read back as this element type's
// value in double, or in float for types of 32 bits and fewer), nan, (1-2j).
std::string element_text(DType dtype, const std::byte* at);

}  // namespace ckpt
