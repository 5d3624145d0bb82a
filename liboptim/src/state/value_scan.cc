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
  return dtype == ckpt::DType::Float32 || dtype == ckpt::DType::BFloat16 ||
         dtype == ckpt::DType::Float16;
}

ValueScan scan(ckpt::DType dtype, std::span<const std::byte> bytes, Wanted wanted) {
  if (wanted == Wanted::Remainder) return scan_remainders(bytes);
  return scan_words(dtype, bytes, wanted);
}

}  // namespace optim
