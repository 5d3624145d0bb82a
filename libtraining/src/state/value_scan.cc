// Compiled with -O3 (CMakeLists.txt): the loops are to be vectorised.
#include "state/value_scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/wide_vectors.h"
#include "state/remainders.h"

namespace optim {
namespace {

// Elements of an IEEE-like type as words: all exponent bits set means infinity or NaN.
template <class Word>
class WordScan {
 public:
  WordScan(std::span<const std::byte> bytes, Word exponent)
      : bytes_(bytes.data()), count_(bytes.size() / sizeof(Word)), exponent_(exponent) {}

  CKPT_INLINED ValueScan run(Wanted wanted) const {
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
  CKPT_INLINED bool finds_not_finite() const {
    const auto lowest = static_cast<Word>(exponent_ & (~exponent_ + 1));
    Word found = 0;
    for (size_t i = 0; i < count_; ++i) {
      found = static_cast<Word>(found | (magnitude((*this)[i]) + lowest));
    }
    return (found & kSign) != 0;
  }

  // So do a magnitude above zero and ones below that bit.
  CKPT_INLINED bool finds_negative() const {
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

CKPT_WIDE_VECTORS
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

CKPT_WIDE_VECTORS
ValueScan scan_words(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted) {
  switch (dtype) {
    case ckpt::DType::Float32: return WordScan<uint32_t>(bytes, 0x7F800000).run(wanted);
    case ckpt::DType::Float64: return WordScan<uint64_t>(bytes, 0x7FF0000000000000).run(wanted);
    case ckpt::DType::BFloat16: return WordScan<uint16_t>(bytes, 0x7F80).run(wanted);
    case ckpt::DType::Float16: return WordScan<uint16_t>(bytes, 0x7C00).run(wanted);
    default: return {};
  }
}

constexpr size_t kBlockWeights = 32;
constexpr size_t kBlockPairs = kBlockWeights / kWeightsPerPair;
using Block = std::array<uint16_t, kBlockWeights>;

__extension__ using Product = unsigned __int128;

// The step of wyhash (Wang Yi, public domain): two words of four weights make a product of 128
// bits, of which no bit of either is independent. `place`: of the pair in the weight.
CKPT_INLINED uint64_t mixed(uint64_t first, uint64_t second, uint64_t place) {
  const uint64_t key = (place + 1) * 0x9E3779B97F4A7C15;
  const Product product = Product{first ^ key} * (second ^ key ^ 0xD1B54A32D192ED03);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

CKPT_INLINED uint64_t sum_of_pairs(const Block& block, size_t count, uint64_t place) {
  const auto words = std::bit_cast<std::array<uint64_t, 2 * kBlockPairs>>(block);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += mixed(words[2 * i], words[2 * i + 1], place + i);
  return sum;
}

// As round_to_bfloat16(), without a branch: the compiler makes vector instructions of it.
CKPT_INLINED void load_as_bfloat16(const std::byte* masters, Block& weights) {
  for (size_t i = 0; i < kBlockWeights; ++i) {
    uint32_t bits = 0;  // one by one: a copy would be stored in smaller parts than it is loaded
    std::memcpy(&bits, masters + i * sizeof(bits), sizeof(bits));
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    weights[i] = static_cast<uint16_t>(is_nan ? kBFloat16NaN : rounded);
  }
}

CKPT_INLINED void load_as_float16(const std::byte* masters, Block& weights) {
  std::array<float, kBlockWeights> block;
  std::memcpy(block.data(), masters, sizeof(block));
  std::ranges::transform(block, weights.begin(), round_to_float16);
}

CKPT_INLINED void load_weights(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
}

CKPT_INLINED void load_bfloat16(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
  for (uint16_t& weight : block) weight = with_one_nan_bfloat16(weight);
}

CKPT_INLINED void load_float16(const std::byte* weights, Block& block) {
  std::memcpy(block.data(), weights, sizeof(block));
  for (uint16_t& weight : block) weight = with_one_nan_float16(weight);
}

// Block by block; the last one is filled up with zeros.
template <size_t kElementBytes, typename Load>
CKPT_INLINED uint64_t sum_of_blocks(std::span<const std::byte> bytes, uint64_t first, Load load) {
  constexpr size_t kBlockBytes = kBlockWeights * kElementBytes;
  uint64_t sum = 0;
  uint64_t place = first / kWeightsPerPair;
  Block block;
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
    load(bytes.data(), block);
    sum += sum_of_pairs(block, kBlockPairs, place);
    place += kBlockPairs;
  }
  if (bytes.empty()) return sum;
  std::array<std::byte, kBlockBytes> last = {};
  std::ranges::copy(bytes, last.begin());
  load(last.data(), block);
  constexpr size_t kPairBytes = kWeightsPerPair * kElementBytes;
  return sum + sum_of_pairs(block, (bytes.size() + kPairBytes - 1) / kPairBytes, place);
}

// `infinity`: of the type; only NaNs have larger magnitudes.
CKPT_INLINED bool has_nan(std::span<const std::byte> weights, int16_t infinity) {
  int16_t largest = 0;
  for (size_t i = 0; i + sizeof(int16_t) <= weights.size(); i += sizeof(int16_t)) {
    int16_t bits = 0;
    std::memcpy(&bits, weights.data() + i, sizeof(bits));
    largest = std::max(largest, static_cast<int16_t>(bits & 0x7FFF));
  }
  return largest > infinity;
}

// NaNs are looked for first, in parts that stay in a core's nearest cache: to make them equal on
// the way would take as long as the sum.
template <typename Load>
CKPT_INLINED uint64_t sum_of_parts(std::span<const std::byte> weights, uint64_t first,
                                   int16_t infinity, Load load_with_one_nan) {
  constexpr size_t kPartBytes = 4096;
  uint64_t sum = 0;
  for (; !weights.empty(); first += kPartBytes / sizeof(uint16_t)) {
    const auto part = weights.first(std::min(weights.size(), kPartBytes));
    sum += has_nan(part, infinity) ? sum_of_blocks<sizeof(uint16_t)>(part, first, load_with_one_nan)
                                   : sum_of_blocks<sizeof(uint16_t)>(part, first, load_weights);
    weights = weights.subspan(part.size());
  }
  return sum;
}

CKPT_WIDE_VECTORS
uint64_t sum_as_they_are(std::span<const std::byte> weights, uint64_t first, ckpt::DType dtype) {
  if (dtype == ckpt::DType::Float32) {
    return sum_of_blocks<sizeof(uint16_t)>(weights, 2 * first, load_weights);
  }
  if (dtype == ckpt::DType::Float16) {
    return sum_of_parts(weights, first, 0x7C00, load_float16);
  }
  return sum_of_parts(weights, first, 0x7F80, load_bfloat16);
}

CKPT_WIDE_VECTORS
uint64_t sum_rounded(std::span<const std::byte> masters, uint64_t first, ckpt::DType weights) {
  if (weights == ckpt::DType::Float32) return sum_as_they_are(masters, first, weights);
  if (weights == ckpt::DType::Float16) {
    return sum_of_blocks<sizeof(float)>(masters, first, load_as_float16);
  }
  return sum_of_blocks<sizeof(float)>(masters, first, load_as_bfloat16);
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

uint64_t sum_of_weights(std::span<const std::byte> weights, uint64_t first, ckpt::DType dtype) {
  return sum_as_they_are(weights, first, dtype);
}

uint64_t sum_of_masters(std::span<const std::byte> masters, uint64_t first, ckpt::DType weights) {
  return sum_rounded(masters, first, weights);
}

}  // namespace optim
