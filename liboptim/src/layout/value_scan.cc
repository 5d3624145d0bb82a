// Compiled with -O3 (CMakeLists.txt): the loops are to be vectorised.
#include "layout/value_scan.h"

#include <algorithm>
#include <cstring>

#include "layout/rounding.h"

namespace optim {
namespace {

// Elements of an IEEE-like type: all exponent bits set means infinity or NaN.
template <class Bits>
ValueScan scan_bits(std::span<const std::byte> bytes, Bits exponent) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  constexpr size_t kBlock = 4096;
  Bits block[kBlock];
  ValueScan result;
  const size_t count = bytes.size() / sizeof(Bits);
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = std::min(kBlock, count - start);
    std::memcpy(block, bytes.data() + start * sizeof(Bits), length * sizeof(Bits));
    uint32_t not_finite = 0, negative = 0;
    for (size_t i = 0; i < length; ++i) {
      not_finite += (block[i] & exponent) == exponent;
      negative += block[i] > kSign;  // NaNs with a sign count here, too
    }
    result.not_finite_count += not_finite;
    result.negative_count += negative;
  }
  return result;
}

// splitmix64's steps over place and value.
uint64_t mix(uint64_t index, uint16_t value) {
  uint64_t x = (index << 16 | value) * 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  return x ^ x >> 27;
}

template <class Element, class Round>
uint64_t sum(std::span<const std::byte> bytes, uint64_t first, Round round) {
  uint64_t total = 0;
  const size_t count = bytes.size() / sizeof(Element);
  for (size_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, bytes.data() + i * sizeof(Element), sizeof element);
    total += mix(first + i, round(element));
  }
  return total;
}

}  // namespace

bool is_scanned(ckpt::DType dtype) {
  return dtype == ckpt::DType::Float32 || dtype == ckpt::DType::BFloat16 ||
         dtype == ckpt::DType::Float16;
}

ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case ckpt::DType::Float32: return scan_bits<uint32_t>(bytes, 0x7F800000);
    case ckpt::DType::BFloat16: return scan_bits<uint16_t>(bytes, 0x7F80);
    case ckpt::DType::Float16: return scan_bits<uint16_t>(bytes, 0x7C00);
    default: return {};
  }
}

uint64_t fingerprint(std::span<const std::byte> elements_of_16_bits, uint64_t first) {
  return sum<uint16_t>(elements_of_16_bits, first, [](uint16_t value) { return value; });
}

uint64_t fingerprint_rounded(std::span<const std::byte> float32_elements, ckpt::DType dtype,
                             uint64_t first) {
  if (dtype == ckpt::DType::BFloat16) return sum<float>(float32_elements, first, round_to_bfloat16);
  return sum<float>(float32_elements, first, round_to_float16);
}

}  // namespace optim
