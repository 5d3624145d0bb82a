#include <ckpt/rounding.h>

namespace ckpt {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kHalfOverflow = 0x477FF000;   // rounds to infinity: halfway above 65504
constexpr uint32_t kHalfNormalMin = 0x38800000;  // 2^-14
constexpr int kHalfExponentBias = 15, kFloatExponentBias = 127, kMantissaShift = 13;

// `bits` shifted right with round to nearest, ties to even.
uint32_t shift_rounding(uint32_t bits, int shift) {
  const uint32_t half = uint32_t{1} << (shift - 1);
  const uint32_t odd = bits >> shift & 1;
  return (bits + half - 1 + odd) >> shift;
}

}  // namespace

uint16_t round_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kInfinity) return kFloat16NaN;
  if (magnitude >= kHalfOverflow) return sign | 0x7C00;
  if (magnitude >= kHalfNormalMin) {
    constexpr uint32_t kRebias = static_cast<uint32_t>(kFloatExponentBias - kHalfExponentBias)
                                 << 23;
    return static_cast<uint16_t>(sign | shift_rounding(magnitude - kRebias, kMantissaShift));
  }
  const int exponent = static_cast<int>(magnitude >> 23);
  const int shift = 126 - exponent;  // a subnormal half counts in units of 2^-24
  if (shift > 24) return sign;
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  return static_cast<uint16_t>(sign | shift_rounding(mantissa, shift));
}

}  // namespace ckpt
