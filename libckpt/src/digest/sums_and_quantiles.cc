// Compiled without contraction (CMakeLists.txt): two-product errors are computed as written.
#include "digest/sums_and_quantiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "model/element.h"

namespace ckpt {
namespace {

constexpr int kDigitBits = 32;
constexpr int kBias = 1088;  // 34 digits below the point: 2^-1074 is the smallest double
constexpr int kMantissaBits = 52;
constexpr uint64_t kDigitMask = 0xFFFFFFFF;

constexpr int kFractionBitsOfDouble = 52;

bool is_whole_number(DType dtype) {
  const std::string_view type = name(dtype);
  return type == "bool" || type.starts_with("int") || type.starts_with("uint");
}

}  // namespace

// Room for neighbours, too: mostly terms of one size come.
int64_t& ExactSum::digit(int place) {
  if (digits_.empty()) {
    first_ = place - 1;
    digits_.resize(4);
  }
  if (place < first_) {
    digits_.insert(digits_.begin(), static_cast<size_t>(first_ - place), 0);
    first_ = place;
  }
  const auto index = static_cast<size_t>(place - first_);
  if (index >= digits_.size()) digits_.resize(index + 1);
  return digits_[index];
}

void ExactSum::add(double term, int digits) {
  const auto bits = std::bit_cast<uint64_t>(term);
  const int exponent = static_cast<int>(bits >> kMantissaBits & 0x7FF);
  uint64_t mantissa = bits & ((uint64_t{1} << kMantissaBits) - 1);
  if (exponent == 0x7FF) {
    not_finite_ += term;
    return;
  }
  if (exponent != 0) mantissa |= uint64_t{1} << kMantissaBits;
  if (mantissa == 0) return;
  // The lowest bit of the mantissa counts 2^(exponent - 1075), of subnormal numbers 2^-1074.
  const int lowest = std::max(exponent, 1) - 1075 + kBias;
  const int place = lowest / kDigitBits + digits, shift = lowest % kDigitBits;
  const auto low = (mantissa & kDigitMask) << shift;
  const auto high = (mantissa >> kDigitBits) << shift;
  const int64_t sign = std::signbit(term) ? -1 : 1;
  digit(place + 2);  // before the others, as it may move them
  digit(place) += sign * static_cast<int64_t>(low & kDigitMask);
  digit(place + 1) += sign * static_cast<int64_t>((low >> kDigitBits) + (high & kDigitMask));
  digit(place + 2) += sign * static_cast<int64_t>(high >> kDigitBits);
}

void ExactSum::add_quotient_of_square(double factor, double divisor, int digits) {
  const double square = factor * factor;
  const double quotient = square / divisor;
  add(quotient, digits);
  if (!std::isfinite(quotient)) return;
  const double rest = std::fma(-quotient, divisor, square) + std::fma(factor, factor, -square);
  add(rest / divisor, digits);
}

void ExactSum::add(const ExactSum& other) {
  not_finite_ += other.not_finite_;
  for (size_t i = 0; i < other.digits_.size(); ++i) {
    if (other.digits_[i] != 0) digit(other.first_ + static_cast<int>(i)) += other.digits_[i];
  }
}

void ExactSum::subtract(const ExactSum& other) {
  ExactSum negative = other;
  for (int64_t& digit : negative.digits_) digit = -digit;
  negative.not_finite_ = -negative.not_finite_;
  add(negative);
}

// Carries first: digits of 32 bits below a highest one that has the sign.
ExactSum::Parts ExactSum::parts(int shift) const {
  if (not_finite_ != 0) return {not_finite_, 0};  // of infinity and NaN, NaN too
  std::vector<int64_t> digits = digits_;
  digits.resize(digits.size() + 2);
  for (size_t i = 0; i + 1 < digits.size(); ++i) {
    const int64_t carry = digits[i] >> kDigitBits;
    digits[i] -= carry * (int64_t{1} << kDigitBits);
    digits[i + 1] += carry;
  }
  if (digits.back() < 0) {  // the negative of the sum, negated: its digits fall off from the top
    ExactSum negative;
    negative.subtract(*this);
    const Parts parts = negative.parts(shift);
    return {-parts.high, -parts.low};
  }
  Parts parts;
  for (size_t i = digits.size(); i-- != 0;) {  // two-sum of each digit, from the highest
    const int power = kDigitBits * (first_ + static_cast<int>(i) - shift) - kBias;
    const double term = std::ldexp(static_cast<double>(digits[i]), power);
    const double sum = parts.high + term;
    if (std::isinf(sum)) return {sum, 0};  // more than a double holds
    parts.low += term - (sum - parts.high);
    parts.high = sum;
  }
  const double sum = parts.high + parts.low;
  return {sum, parts.low - (sum - parts.high)};
}

int ExactSum::magnitude() const {
  for (size_t i = digits_.size(); i-- != 0;) {
    if (digits_[i] != 0) return first_ + static_cast<int>(i) - kBias / kDigitBits;
  }
  return 0;
}

double ExactSum::root_of_share(double count) const {
  const int even = magnitude() / 2 * 2;
  const double share = parts(even).high / count;
  return share > 0 ? std::ldexp(std::sqrt(share), kDigitBits * even / 2) : 0;
}

QuantileSketch::Table& QuantileSketch::table(size_t index) {
  if (!tables_[index]) tables_[index] = std::make_unique<Table>();
  return *tables_[index];
}

inline void QuantileSketch::count(double value) {
  const auto bits = std::bit_cast<uint64_t>(value) >> (kFractionBitsOfDouble - kFractionBits);
  const size_t index = bits >> kFractionBits;
  if (index % kNegative == kNotFinite) return;
  ++table(index)[bits % kBuckets];
  ++count_;
}

void QuantileSketch::add(DType dtype, std::span<const std::byte> elements) {
  visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    constexpr size_t kBytes = sizeof(typename Element::Bits);
    for (size_t at = 0; at < elements.size(); at += kBytes) {
      count(Element::value(load_bits<Element>(elements.data() + at)));
    }
  });
}

void QuantileSketch::add(const QuantileSketch& other) {
  count_ += other.count_;
  for (size_t i = 0; i < kTables; ++i) {
    if (!other.tables_[i]) continue;
    Table& own = table(i);
    for (size_t j = 0; j < kBuckets; ++j) own[j] += (*other.tables_[i])[j];
  }
}

double QuantileSketch::value_at(unsigned percent, DType dtype) const {
  if (count_ == 0) return NAN;
  const uint64_t hundredths = count_ % 100 * percent;
  uint64_t left = count_ / 100 * percent + hundredths / 100 + (hundredths % 100 != 0 ? 1 : 0);
  left = std::max<uint64_t>(left, 1);
  const auto value_of = [&](size_t index, size_t bucket) {
    const auto bits = uint64_t{index << kFractionBits | bucket}
                      << (kFractionBitsOfDouble - kFractionBits);
    if (index % kNegative == 0) return 0.0;  // less than any normal number
    const auto half = uint64_t{1} << (kFractionBitsOfDouble - kFractionBits - 1);
    const uint64_t bytes = bytes_per_element(dtype);
    const bool has_more_bits = bytes > 2 || (bytes == 2 && is_whole_number(dtype));
    const auto middle = std::bit_cast<double>(has_more_bits ? bits | half : bits);
    return is_whole_number(dtype) ? std::trunc(middle) : middle;
  };
  for (size_t i = 0; i < kTables; ++i) {  // from the lowest value: of negative ones the longest
    const bool is_negative = i < kNegative;
    const size_t index = is_negative ? kTables - 1 - i : i - kNegative;
    for (size_t j = 0; tables_[index] && j < kBuckets; ++j) {
      const size_t bucket = is_negative ? kBuckets - 1 - j : j;
      const uint64_t count = (*tables_[index])[bucket];
      if (left <= count) return value_of(index, bucket);
      left -= count;
    }
  }
  return NAN;
}

}  // namespace ckpt
