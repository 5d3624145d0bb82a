// Compiled with -O3 (CMakeLists.txt): the loops are to be vectorised.
#include "state/value_scan.h"

#include <algorithm>
#include <cstring>

#include "state/remainders.h"
#include "state/wide_vectors.h"

namespace optim {
namespace {

// Elements of an IEEE-like type as words: all exponent bits set means infinity or NaN.
template <class Word>
class WordScan {
 public:
  WordScan(std::span<const std::byte> bytes, Word exponent)
      : bytes_(bytes.data()), count_(bytes.size() / sizeof(Word)), exponent_(exponent) {}

  OPTIM_INLINED ValueScan run(Wanted wanted) const {
    ValueScan result;
    if (wanted != Wanted::Anything && finds_not_finite()) {
      result.nan = count([this](Word word) { return magnitude(word) > exponent_; });
      result.infinite = count([this](Word word) { return magnitude(word) == exponent_; });
    }
    if (wanted == Wanted::FiniteAndNotNegative && finds_negative()) {
      result.negative = count([](Word word) { return word > kSign; });  // also of NaNs
    }
    return result;
  }

 private:
  static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));

  Word operator[](size_t i) const {
    Word word;
    std::memcpy(&word, bytes_ + i * sizeof(Word), sizeof word);
    return word;
  }

  static Word magnitude(Word word) { return static_cast<Word>(word & ~kSign); }

  // An exponent of ones and its lowest bit reach the sign's bit. To gather bits takes less than to
  // compare and count, and mostly nothing is to be counted.
  OPTIM_INLINED bool finds_not_finite() const {
    const auto lowest = static_cast<Word>(exponent_ & (~exponent_ + 1));
    Word found = 0;
    for (size_t i = 0; i < count_; ++i) {
      found = static_cast<Word>(found | (magnitude((*this)[i]) + lowest));
    }
    return (found & kSign) != 0;
  }

  // So do a magnitude above zero and ones below that bit.
  OPTIM_INLINED bool finds_negative() const {
    Word found = 0;
    for (size_t i = 0; i < count_; ++i) {
      const Word word = (*this)[i];
      found = static_cast<Word>(found | (word & (magnitude(word) + (kSign - 1))));
    }
    return (found & kSign) != 0;
  }

  template <class IsCounted>
  Unwanted count(IsCounted is_counted) const {
    Unwanted result;
    for (size_t i = 0; i < count_; ++i) {
      if (is_counted((*this)[i]) && result.count++ == 0) result.first = i;
    }
    return result;
  }

  const std::byte* bytes_;
  size_t count_;
  Word exponent_;
};

// Types of one byte: with the bits of `mask` alone, those above `finite` are NaN, but for one that
// is infinite. Minus zero is the NaN of float8_e4m3fnuz and float8_e5m2fnuz.
struct ByteType {
  uint8_t mask, finite, infinite;
};

ByteType byte_type(ckpt::DType dtype) {
  constexpr uint8_t kNone = 0xFF;  // no value with a mask of 0x7F
  switch (dtype) {
    case ckpt::DType::Float8E4M3FN: return {0x7F, 0x7E, kNone};
    case ckpt::DType::Float8E5M2: return {0x7F, 0x7B, 0x7C};
    case ckpt::DType::Float8E8M0FNU: return {0xFF, 0xFE, 0x00};
    default: return {0xFF, 0x80, kNone};
  }
}

OPTIM_WIDE_VECTORS
ValueScan scan_bytes(ckpt::DType dtype, std::span<const std::byte> bytes) {
  const ByteType type = byte_type(dtype);
  const bool is_unsigned_zero = type.finite == 0x80;
  const auto is_found = [=](std::byte byte) {
    const auto bits = static_cast<uint8_t>(std::to_integer<uint8_t>(byte) & type.mask);
    return is_unsigned_zero ? bits == 0x80 : bits > type.finite;
  };
  uint8_t found = 0;  // gathered, as mostly there is none
  for (const std::byte byte : bytes) found = static_cast<uint8_t>(found | (is_found(byte) ? 1 : 0));
  ValueScan result;
  for (size_t i = 0; found != 0 && i < bytes.size(); ++i) {
    if (!is_found(bytes[i])) continue;
    const auto bits = static_cast<uint8_t>(std::to_integer<uint8_t>(bytes[i]) & type.mask);
    Unwanted& unwanted = bits == type.infinite ? result.infinite : result.nan;
    if (unwanted.count++ == 0) unwanted.first = i;
  }
  return result;
}

// Of two numbers each: an element with a NaN in it is NaN, else one with an infinity infinite.
ValueScan scan_complex(ckpt::DType part, std::span<const std::byte> bytes) {
  const ValueScan parts = scan(part, bytes, Wanted::Finite);
  ValueScan result;
  if (parts.nan.count == 0 && parts.infinite.count == 0) return result;
  const size_t element_bytes = 2 * ckpt::bytes_per_element(part);
  for (size_t i = 0; i < bytes.size() / element_bytes; ++i) {
    const ValueScan one =
        scan(part, bytes.subspan(i * element_bytes, element_bytes), Wanted::Finite);
    Unwanted& unwanted = one.nan.count != 0 ? result.nan : result.infinite;
    const bool is_finite = one.nan.count == 0 && one.infinite.count == 0;
    if (!is_finite && unwanted.count++ == 0) unwanted.first = i;
  }
  return result;
}

// One by one: such checkpoints are few.
ValueScan scan_remainders(std::span<const std::byte> bytes) {
  ValueScan result;
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if (!is_remainder(value) && result.not_remainder.count++ == 0) result.not_remainder.first = i;
  }
  return result;
}

OPTIM_WIDE_VECTORS
ValueScan scan_words(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted) {
  switch (dtype) {
    case ckpt::DType::Float32: return WordScan<uint32_t>(bytes, 0x7F800000).run(wanted);
    case ckpt::DType::Float64: return WordScan<uint64_t>(bytes, 0x7FF0000000000000).run(wanted);
    case ckpt::DType::BFloat16: return WordScan<uint16_t>(bytes, 0x7F80).run(wanted);
    case ckpt::DType::Float16: return WordScan<uint16_t>(bytes, 0x7C00).run(wanted);
    default: return {};
  }
}

}  // namespace

void Unwanted::add(const Unwanted& part, uint64_t offset) {
  if (part.count == 0) return;
  const uint64_t part_first = offset + part.first;
  first = count == 0 ? part_first : std::min(first, part_first);
  count += part.count;
}

void ValueScan::add(const ValueScan& part, uint64_t offset) {
  nan.add(part.nan, offset);
  infinite.add(part.infinite, offset);
  negative.add(part.negative, offset);
  not_remainder.add(part.not_remainder, offset);
}

bool is_scanned(ckpt::DType dtype) {
  using enum ckpt::DType;
  switch (dtype) {
    case UInt8:
    case Int8:
    case Int16:
    case Int32:
    case Int64:
    case UInt16:
    case UInt32:
    case UInt64:
    case Bool: return false;
    default: return true;
  }
}

ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted) {
  if (wanted == Wanted::Remainder) return scan_remainders(bytes);
  if (wanted == Wanted::Anything) return {};
  switch (dtype) {
    case ckpt::DType::Complex32: return scan_complex(ckpt::DType::Float16, bytes);
    case ckpt::DType::Complex64: return scan_complex(ckpt::DType::Float32, bytes);
    case ckpt::DType::Complex128: return scan_complex(ckpt::DType::Float64, bytes);
    default: break;
  }
  return ckpt::bytes_per_element(dtype) == 1 ? scan_bytes(dtype, bytes)
                                             : scan_words(dtype, bytes, wanted);
}

}  // namespace optim
