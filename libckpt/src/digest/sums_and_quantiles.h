#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ckpt/dtype.h>
#include <ckpt/statistics.h>

namespace ckpt {

// A sum of doubles without rounding: an integer of as many digits of 32 bits as the terms need.
// So it does not depend on their order. 2^29 terms at most.
class ExactSum {
 public:
  // term * 2^(32 * digits).
  void add(double term, int digits = 0);
  // factor^2 / divisor * 2^(32 * digits), with an error of 2^-105 of it.
  void add_quotient_of_square(double factor, double divisor, int digits = 0);
  void add(const ExactSum& other);
  void subtract(const ExactSum& other);
  double value() const { return parts().high; }  // rounded
  struct Parts {
    double high = 0, low = 0;  // the sum, rounded; what the rounding took away, rounded
  };
  // Of the sum by 2^(32 * digits).
  Parts parts(int digits = 0) const;
  // By which power of 2^32 to divide the sum so that it is neither large nor small.
  int magnitude() const;
  // The square root of the sum by a count, which no square overflows; 0 where it is negative.
  double root_of_share(double count) const;

 private:
  int64_t& digit(int place);

  // Digit i counts 2^(32 * (first_ + i) - kBias). Between additions they may be of any sign and
  // longer than 32 bits.
  std::vector<int64_t> digits_;
  int first_ = 0;
  double not_finite_ = 0;  // the sum of the terms that are not
};

// Counts finite elements by sign, exponent and the first ten bits of the fraction: a table for each
// exponent that occurs, 8 KiB each. Sums of counts, so that parts may be added in any order. A
// quantile lies in the bucket of the element that it is; its value is the bucket's middle, which is
// that element where types have no more bits, and within 2^-11 of its magnitude elsewhere.
class QuantileSketch {
 public:
  void add(DType dtype, std::span<const std::byte> elements);
  void add(const QuantileSketch& other);
  // The element of rank ceil(percent / 100 * count), from 1. NaN where nothing was counted.
  double value_at(unsigned percent, DType dtype) const;

 private:
  static constexpr int kFractionBits = 10;
  static constexpr size_t kBuckets = size_t{1} << kFractionBits;
  static constexpr size_t kTables = size_t{1} << 12;  // by sign and exponent of a double
  static constexpr size_t kNegative = kTables / 2, kNotFinite = 2047;
  using Table = std::array<uint64_t, kBuckets>;

  void count(double value);
  Table& table(size_t index);

  uint64_t count_ = 0;
  std::array<std::unique_ptr<Table>, kTables> tables_;
};

}  // namespace ckpt
