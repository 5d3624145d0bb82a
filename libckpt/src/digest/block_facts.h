#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/dtype.h>

namespace ckpt {

// What a block of elements adds to statistics. Moments are of its finite elements. Of complex types
// elements are counted alone.
struct BlockFacts {
  uint64_t finite_count = 0, zero_count = 0, nan_count = 0, inf_count = 0;
  uint64_t negative_zero_count = 0;  // of the zeros
  double sum = 0, sum_low = 0;  // of types of 64 bits, what rounding took away from the sum, too
  double squares = 0;           // of the deviations from the block's own mean
  double min = 0, max = 0;      // of the finite elements
  bool has_minus_inf = false, has_plus_inf = false;
  // Where squares of elements leave the range of a double: sums are to be multiplied by
  // 2^(32 * scale), squares by the square of that.
  int scale = 0;
  uint64_t min_bits = 0, max_bits = 0;  // of int64 and uint64
};

// Counts by sign and exponent: the upper nine bits of a float32. Four tables, so that elements of
// one exponent that follow each other do not wait for each other.
class ExponentCounts {
 public:
  static constexpr size_t kBins = 512;
  static constexpr size_t kTables = 4;
  static constexpr size_t kNegative = 256;                  // the first bin of negative numbers
  static constexpr size_t kNotFinite = 255;                 // within a sign
  static constexpr uint64_t kBytesMax = uint64_t{1} << 30;  // of elements, until a count is full
  using Tables = std::array<std::array<uint32_t, kBins>, kTables>;

  uint64_t count(size_t bin) const {
    uint64_t count = 0;
    for (const auto& table : tables_) count += table[bin];
    return count;
  }
  Tables& tables() { return tables_; }

 private:
  Tables tables_ = {};
};

// `elements` of at most 4096 bytes. Adds their exponents, zeros with the smallest, to `exponents`,
// if there are any to be counted.
BlockFacts describe_block(DType dtype, std::span<const std::byte> elements,
                          ExponentCounts* exponents);

// The bin of a finite number.
size_t exponent_bin(double value);

}  // namespace ckpt
