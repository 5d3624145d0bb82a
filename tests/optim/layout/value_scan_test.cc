#include "layout/value_scan.h"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/random_tensors.h"

using ckpt::DType;
using optim::Wanted;

namespace {

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

// By the meaning of the bits: `exponent` has those of the exponent.
optim::ValueScan expected(const auto& words, uint32_t exponent, uint32_t sign) {
  optim::ValueScan result;
  for (const uint32_t word : words) {
    result.not_finite_count += (word & exponent) == exponent ? 1 : 0;
    result.negative_count += (word & sign) != 0 && word != sign ? 1 : 0;
  }
  return result;
}

void check(const optim::ValueScan& actual, const optim::ValueScan& wanted) {
  BOOST_TEST(actual.not_finite_count == wanted.not_finite_count);
  BOOST_TEST(actual.negative_count == wanted.negative_count);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(value_scan)

BOOST_AUTO_TEST_CASE(each_of_the_16_bit_patterns_alone_and_all_together_are_what_their_bits_mean) {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), uint16_t{0});
  const std::pair<DType, uint32_t> types[] = {{DType::BFloat16, 0x7F80}, {DType::Float16, 0x7C00}};
  for (const auto& [dtype, exponent] : types) {
    check(scan(dtype, bytes_of(all), Wanted::FiniteAndNotNegative),
          expected(all, exponent, 0x8000));
    for (const uint16_t word : all) {
      const std::vector<uint16_t> alone{word};
      const auto found = scan(dtype, bytes_of(alone), Wanted::FiniteAndNotNegative);
      const auto right = expected(alone, exponent, 0x8000);
      BOOST_REQUIRE(found.not_finite_count == right.not_finite_count);
      BOOST_REQUIRE(found.negative_count == right.negative_count);
    }
  }
}

BOOST_AUTO_TEST_CASE(one_float32_among_good_ones_is_found_wherever_it_stands) {
  const uint32_t words[] = {0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000001,
                            0x80000000, 0x00000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x007FFFFF};
  for (const uint32_t word : words) {
    for (size_t place = 0; place < 40; ++place) {
      std::vector<uint32_t> values(40, std::bit_cast<uint32_t>(0.5F));
      values[place] = word;
      check(scan(DType::Float32, bytes_of(values), Wanted::FiniteAndNotNegative),
            expected(values, 0x7F800000, 0x80000000));
    }
  }
}

BOOST_AUTO_TEST_CASE(random_bits_are_counted_at_any_alignment) {
  test::Random random(71);
  std::vector<uint32_t> values(5000);
  for (uint32_t& value : values) value = static_cast<uint32_t>(random());
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> moved(values.size() * 4 + shift);
    std::ranges::copy(bytes_of(values), moved.begin() + static_cast<ptrdiff_t>(shift));
    check(scan(DType::Float32, std::span(moved).subspan(shift), Wanted::FiniteAndNotNegative),
          expected(values, 0x7F800000, 0x80000000));
  }
}

BOOST_AUTO_TEST_CASE(only_what_is_wanted_is_counted) {
  const std::vector<float> values{-1.0F, INFINITY, -INFINITY, 2.0F};
  check(scan(DType::Float32, bytes_of(values), Wanted::Anything), {0, 0});
  check(scan(DType::Float32, bytes_of(values), Wanted::Finite), {2, 0});
  check(scan(DType::Float32, bytes_of(values), Wanted::FiniteAndNotNegative), {2, 2});
}

BOOST_AUTO_TEST_SUITE_END()
