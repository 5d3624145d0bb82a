// Compiled with -O3 and without contraction (CMakeLists.txt): the loops are to be vectorised, and
// to give the same on every processor.
#include "digest/block_facts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/wide_vectors.h"
#include "model/element.h"

namespace ckpt {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kLanes = 16;  // sums side by side, whatever the width of a vector
using Values = std::array<double, kBlockBytes>;

template <class Word>
CKPT_INLINED Word word_at(const std::byte* bytes, size_t index) {
  Word word;
  std::memcpy(&word, bytes + index * sizeof word, sizeof word);
  return word;
}

CKPT_INLINED float float32_at(const std::byte* bytes, size_t index) {
  return std::bit_cast<float>(word_at<uint32_t>(bytes, index));
}

CKPT_INLINED float bfloat16_at(const std::byte* bytes, size_t index) {
  return std::bit_cast<float>(static_cast<uint32_t>(word_at<uint16_t>(bytes, index)) << 16);
}

// Scaling by 2^112 makes the exponents of float16, moved in place, those of float32, and subnormal
// numbers normal; infinity and NaN keep theirs.
CKPT_INLINED void widen_float16(const std::byte* bytes, size_t count, Values& values) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t word = word_at<uint16_t>(bytes, i);
    const uint32_t magnitude = (word & 0x7FFF) << 13;
    const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
    const uint32_t kept = magnitude >= 0x0F800000 ? magnitude | 0x7F800000 : scaled;
    values[i] = static_cast<double>(std::bit_cast<float>(kept | (word & 0x8000) << 16));
  }
}

// The upper nine bits of words of a float that has the exponent of float32.
template <class Word>
CKPT_INLINED void count_words(const std::byte* bytes, size_t count,
                              ExponentCounts::Tables& tables) {
  constexpr int kShift = 8 * sizeof(Word) - 9;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    ++tables[0][word_at<Word>(bytes, i) >> kShift];
    ++tables[1][word_at<Word>(bytes, i + 1) >> kShift];
    ++tables[2][word_at<Word>(bytes, i + 2) >> kShift];
    ++tables[3][word_at<Word>(bytes, i + 3) >> kShift];
  }
  for (; i < count; ++i) ++tables[0][word_at<Word>(bytes, i) >> kShift];
}

size_t bin_of(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF) - 1023;
  const size_t bin = exponent == 1024 ? ExponentCounts::kNotFinite
                                      : static_cast<size_t>(std::clamp(exponent, -127, 127) + 127);
  return bin + (bits >> 63) * ExponentCounts::kNegative;
}

void count_values(const Values& values, size_t count, ExponentCounts::Tables& tables) {
  for (size_t i = 0; i < count; ++i) ++tables[i % ExponentCounts::kTables][bin_of(values[i])];
}

template <class Number>
using Lanes = std::array<Number, kLanes>;

template <class Number>
CKPT_INLINED Number total(const Lanes<Number>& lanes) {
  Number sum = 0;
  for (const Number lane : lanes) sum += lane;
  return sum;
}

// visit(lane, i) for each of so many elements, kLanes of them side by side.
template <class Visit>
CKPT_INLINED void for_lanes(size_t count, const Visit& visit) {
  const size_t even = count / kLanes * kLanes;
  for (size_t i = 0; i < even; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) visit(lane, i + lane);
  }
  for (size_t i = even; i < count; ++i) visit(i - even, i);
}

// Sums and extremes of kLanes elements side by side. Number is float where every element is one,
// since twice as many are compared at once; else double.
template <class Number>
struct LanesOfFacts {
  Lanes<double> sums = {}, squares = {};
  Lanes<Number> lowest, highest;
  Lanes<uint32_t> zeros = {};

  explicit LanesOfFacts(Number first) {
    lowest.fill(first);
    highest.fill(first);
  }
  CKPT_INLINED void add(size_t lane, Number value) {
    const auto wide = static_cast<double>(value);
    sums[lane] += wide;
    squares[lane] += wide * wide;
    lowest[lane] = value < lowest[lane] ? value : lowest[lane];
    highest[lane] = value > highest[lane] ? value : highest[lane];
    zeros[lane] += value == 0 ? 1 : 0;
  }
};

// Of values that are all finite; where one is not, the sum is not. `squares`: of the values.
template <class Number, class ValueAt>
CKPT_INLINED BlockFacts describe_once(const ValueAt& value_at, size_t count) {
  LanesOfFacts<Number> lanes(value_at(0));
  for_lanes(count, [&](size_t lane, size_t i) { lanes.add(lane, value_at(i)); });
  return {.finite_count = count,
          .zero_count = total(lanes.zeros),
          .sum = total(lanes.sums),
          .squares = total(lanes.squares),
          .min = *std::ranges::min_element(lanes.lowest),
          .max = *std::ranges::max_element(lanes.highest)};
}

template <class ValueAt>
CKPT_INLINED double squares_around(double mean, const ValueAt& value_at, size_t count) {
  Lanes<double> squares = {};
  for_lanes(count, [&](size_t lane, size_t i) {
    const double gap = value_at(i) - mean;
    squares[lane] += gap * gap;
  });
  return total(squares);
}

// The squares of the deviations from the mean are those of the values less those of the mean, in
// one pass; where that difference would lose more than eight bits, they take a second one.
template <class Number, class ValueAt>
CKPT_INLINED BlockFacts describe(const ValueAt& value_at, size_t count) {
  if (count == 0) return {};
  constexpr double kLossMax = 256;
  BlockFacts facts = describe_once<Number>(value_at, count);
  const double mean = facts.sum / static_cast<double>(count);
  const double of_mean = facts.sum * mean;
  const double squares = facts.squares - of_mean;
  const bool is_near_zero = of_mean <= kLossMax * squares;
  facts.squares = is_near_zero ? squares : squares_around(mean, value_at, count);
  return facts;
}

CKPT_WIDE_VECTORS
BlockFacts describe_float32(std::span<const std::byte> elements, ExponentCounts::Tables* tables) {
  const size_t count = elements.size() / sizeof(uint32_t);
  if (tables != nullptr) count_words<uint32_t>(elements.data(), count, *tables);
  return describe<float>([&](size_t i) { return float32_at(elements.data(), i); }, count);
}

CKPT_WIDE_VECTORS
BlockFacts describe_bfloat16(std::span<const std::byte> elements, ExponentCounts::Tables* tables) {
  const size_t count = elements.size() / sizeof(uint16_t);
  if (tables != nullptr) count_words<uint16_t>(elements.data(), count, *tables);
  return describe<float>([&](size_t i) { return bfloat16_at(elements.data(), i); }, count);
}

CKPT_WIDE_VECTORS
BlockFacts describe_values(const Values& values, size_t count) {
  return describe<double>([&](size_t i) { return values[i]; }, count);
}

CKPT_WIDE_VECTORS
void widen_float16s(std::span<const std::byte> elements, Values& values) {
  widen_float16(elements.data(), elements.size() / sizeof(uint16_t), values);
}

struct WideSum {
  double high = 0, low = 0;
};

// With what rounding takes away from each addition: 1e16 + 1 - 1e16 is 1.
CKPT_INLINED void add_two(double& high, double& low, double term) {
  const double sum = high + term;
  const double added = sum - high;
  low += (high - (sum - added)) + (term - added);
  high = sum;
}

CKPT_WIDE_VECTORS
WideSum wide_sum(const Values& values, size_t count) {
  Lanes<double> highs = {}, lows = {};
  for_lanes(count, [&](size_t lane, size_t i) { add_two(highs[lane], lows[lane], values[i]); });
  for (size_t width = kLanes / 2; width != 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) {
      add_two(highs[lane], lows[lane], highs[lane + width]);
      lows[lane] += lows[lane + width];
    }
  }
  WideSum sum{highs[0], 0};
  add_two(sum.high, sum.low, lows[0]);
  return sum;
}

CKPT_WIDE_VECTORS
double squares_around_mean(const Values& values, size_t count, double mean) {
  return squares_around(
      mean, [&](size_t i) { return values[i]; }, count);
}

// Of finite float64 elements, the squares of which may leave the range of a double: scaled then.
void widen_sums(Values& values, size_t count, BlockFacts& facts) {
  constexpr double kLarge = 0x1p480, kSmall = 0x1p-480;
  const double most = std::max(std::fabs(facts.min), std::fabs(facts.max));
  const bool is_extreme = most >= kLarge || (most < kSmall && most != 0);
  if (is_extreme) {
    facts.scale = std::ilogb(most) / 32;
    for (size_t i = 0; i < count; ++i) values[i] = std::ldexp(values[i], -32 * facts.scale);
  }
  const WideSum sum = wide_sum(values, count);
  facts.sum = sum.high;
  facts.sum_low = sum.low;
  if (is_extreme) {
    facts.squares = squares_around_mean(values, count, sum.high / static_cast<double>(count));
  }
}

struct IntegerFacts {
  int64_t lowest = 0, highest = 0;
  uint64_t upper = 0, lower = 0;  // sums of the halves of the elements, from -2^63 on
};

// `flip`: the bits that make an element a signed number.
CKPT_WIDE_VECTORS
IntegerFacts describe_integers(const std::byte* elements, size_t count, uint64_t flip) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  IntegerFacts facts;
  facts.lowest = facts.highest = static_cast<int64_t>(word_at<uint64_t>(elements, 0) ^ flip);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = word_at<uint64_t>(elements, i) ^ flip;
    const auto value = static_cast<int64_t>(bits);
    facts.lowest = value < facts.lowest ? value : facts.lowest;
    facts.highest = value > facts.highest ? value : facts.highest;
    facts.upper += (bits ^ kSign) >> 32;
    facts.lower += bits & 0xFFFFFFFF;
  }
  return facts;
}

// Of 64-bit integers, which a double does not hold.
void widen_integers(std::span<const std::byte> elements, bool is_signed, BlockFacts& facts) {
  const uint64_t flip = is_signed ? 0 : uint64_t{1} << 63;
  const size_t count = elements.size() / sizeof(uint64_t);
  const IntegerFacts found = describe_integers(elements.data(), count, flip);
  const auto bias = static_cast<int64_t>(is_signed ? count << 31 : 0);
  facts.sum = static_cast<double>(static_cast<int64_t>(found.upper) - bias) * 0x1p32;
  facts.sum_low = 0;
  add_two(facts.sum, facts.sum_low, static_cast<double>(found.lower));
  facts.min_bits = static_cast<uint64_t>(found.lowest) ^ flip;
  facts.max_bits = static_cast<uint64_t>(found.highest) ^ flip;
}

template <class Element>
std::array<double, 256> values_of_bytes() {
  std::array<double, 256> values = {};
  for (size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = Element::value(static_cast<typename Element::Bits>(bits));
  }
  return values;
}

void widen_others(DType dtype, const std::byte* bytes, size_t count, Values& values) {
  visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (sizeof(typename Element::Bits) == 1) {
      static const std::array<double, 256> known = values_of_bytes<Element>();
      for (size_t i = 0; i < count; ++i) values[i] = known[std::to_integer<uint8_t>(bytes[i])];
    } else {
      for (size_t i = 0; i < count; ++i) {
        values[i] = Element::value(load_bits<Element>(bytes + i * sizeof(typename Element::Bits)));
      }
    }
  });
}

BlockFacts describe_others(DType dtype, std::span<const std::byte> elements, Values& values,
                           ExponentCounts::Tables* tables) {
  const size_t count = elements.size() / bytes_per_element(dtype);
  if (dtype == DType::Float16) {
    widen_float16s(elements, values);
  } else {
    widen_others(dtype, elements.data(), count, values);
  }
  if (tables != nullptr) count_values(values, count, *tables);
  return describe_values(values, count);
}

// Those that are not finite are taken out, and counted.
BlockFacts describe_finite(Values& values, size_t count) {
  size_t finite = 0;
  uint64_t nan_count = 0, inf_count = 0;
  bool has_minus_inf = false, has_plus_inf = false;
  for (size_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) {
      ++nan_count;
    } else if (std::isinf(values[i])) {
      ++inf_count;
      (values[i] < 0 ? has_minus_inf : has_plus_inf) = true;
    } else {
      values[finite++] = values[i];
    }
  }
  BlockFacts facts = describe_values(values, finite);
  facts.nan_count = nan_count;
  facts.inf_count = inf_count;
  facts.has_minus_inf = has_minus_inf;
  facts.has_plus_inf = has_plus_inf;
  return facts;
}

uint64_t count_negative_zeros(std::span<const double> values) {
  return static_cast<uint64_t>(std::ranges::count_if(
      values, [](double value) { return value == 0 && std::signbit(value); }));
}

BlockFacts count_complex(DType dtype, std::span<const std::byte> elements) {
  BlockFacts facts;
  const size_t step = bytes_per_element(dtype);
  visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    for (size_t at = 0; at < elements.size(); at += step) {
      const double a = Element::value(load_bits<Element>(elements.data() + at));
      const double b = Element::value(load_bits<Element>(elements.data() + at + step / 2));
      const bool is_nan = std::isnan(a) || std::isnan(b);
      if (is_nan) ++facts.nan_count;
      if (!is_nan && (std::isinf(a) || std::isinf(b))) ++facts.inf_count;
      if (a == 0 && b == 0) ++facts.zero_count;
    }
  });
  return facts;
}

// Of types of 64 bits.
void widen_sums(DType dtype, std::span<const std::byte> elements, Values& values,
                BlockFacts& facts) {
  if (facts.finite_count == 0) return;
  switch (dtype) {
    case DType::Float64: return widen_sums(values, facts.finite_count, facts);
    case DType::Int64: return widen_integers(elements, true, facts);
    case DType::UInt64: return widen_integers(elements, false, facts);
    default: return;
  }
}

}  // namespace

size_t exponent_bin(double value) { return bin_of(value); }

BlockFacts describe_block(DType dtype, std::span<const std::byte> elements,
                          ExponentCounts* exponents) {
  if (is_complex(dtype)) return count_complex(dtype, elements);
  Values values;  // of which no more is touched than there are elements
  const size_t count = elements.size() / bytes_per_element(dtype);
  const auto tiny_count = [&] {
    return exponents != nullptr ? exponents->count(ExponentCounts::kNegative) : 0;
  };
  const uint64_t tiny_before = tiny_count();
  ExponentCounts::Tables* const tables = exponents != nullptr ? &exponents->tables() : nullptr;
  BlockFacts facts;
  bool has_values = false;
  switch (dtype) {
    case DType::Float32: facts = describe_float32(elements, tables); break;
    case DType::BFloat16: facts = describe_bfloat16(elements, tables); break;
    default: facts = describe_others(dtype, elements, values, tables); has_values = true;
  }
  const bool is_finite = std::isfinite(facts.sum), has_tiny = tiny_count() != tiny_before;
  if (is_finite && !has_tiny) {
    widen_sums(dtype, elements, values, facts);
    return facts;
  }
  if (!has_values) widen_others(dtype, elements.data(), count, values);
  if (!is_finite) facts = describe_finite(values, count);
  if (has_tiny) {
    facts.negative_zero_count = count_negative_zeros(std::span(values).first(facts.finite_count));
  }
  widen_sums(dtype, elements, values, facts);
  return facts;
}

}  // namespace ckpt
