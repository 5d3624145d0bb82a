#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ckpt/dtype.h>
#include <ckpt/statistics.h>

namespace ckpt {

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
