#include "state/value_scan.h"

#include <algorithm>
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
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t word = words[i], magnitude = word & ~sign;
    const auto count = [&](optim::Unwanted& unwanted, bool is_counted) {
      if (is_counted && unwanted.count++ == 0) unwanted.first = i;
    };
    count(result.nan, magnitude > exponent);
    count(result.infinite, magnitude == exponent);
    count(result.negative, (word & sign) != 0 && word != sign);
  }
  return result;
}

bool are_equal(const optim::Unwanted& a, const optim::Unwanted& b) {
  return a.count == b.count && (a.count == 0 || a.first == b.first);
}

void check(const optim::ValueScan& actual, const optim::ValueScan& wanted) {
  BOOST_TEST(are_equal(actual.nan, wanted.nan));
  BOOST_TEST(are_equal(actual.infinite, wanted.infinite));
  BOOST_TEST(are_equal(actual.negative, wanted.negative));
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
      BOOST_REQUIRE(are_equal(found.nan, right.nan));
      BOOST_REQUIRE(are_equal(found.infinite, right.infinite));
      BOOST_REQUIRE(are_equal(found.negative, right.negative));
    }
  }
}

// Against tables of what PyTorch reads in each byte.
BOOST_AUTO_TEST_CASE(each_byte_of_the_8_bit_types_is_what_its_bits_mean) {
  const struct {
    DType dtype;
    std::vector<uint8_t> nan, infinite;
  } types[] = {{DType::Float8E4M3FN, {0x7F, 0xFF}, {}},
               {DType::Float8E5M2, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}, {0x7C, 0xFC}},
               {DType::Float8E4M3FNUZ, {0x80}, {}},
               {DType::Float8E5M2FNUZ, {0x80}, {}},
               {DType::Float8E8M0FNU, {0xFF}, {}}};
  std::vector<uint8_t> all(256);
  std::iota(all.begin(), all.end(), uint8_t{0});
  for (const auto& type : types) {
    const auto found = scan(type.dtype, bytes_of(all), Wanted::Finite);
    BOOST_TEST(found.nan.count == type.nan.size(), name(type.dtype));
    BOOST_TEST(found.nan.first == type.nan.front(), name(type.dtype));
    BOOST_TEST(found.infinite.count == type.infinite.size(), name(type.dtype));
    for (const uint8_t byte : all) {
      const std::vector<uint8_t> alone{byte};
      const auto one = scan(type.dtype, bytes_of(alone), Wanted::Finite);
      BOOST_REQUIRE(one.nan.count == static_cast<size_t>(std::ranges::count(type.nan, byte)));
      BOOST_REQUIRE(one.infinite.count ==
                    static_cast<size_t>(std::ranges::count(type.infinite, byte)));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_complex_element_is_nan_where_a_part_is_and_else_infinite) {
  const double nan = std::nan(""), inf = INFINITY;
  const std::vector<double> parts = {1, 2, nan, 1, 1, inf, inf, nan, -inf, 0, 0, nan};
  const std::vector<float> floats(parts.begin(), parts.end());
  for (const auto& found : {scan(DType::Complex128, bytes_of(parts), Wanted::Finite),
                            scan(DType::Complex64, bytes_of(floats), Wanted::Finite)}) {
    BOOST_TEST(found.nan.count == 3u);
    BOOST_TEST(found.nan.first == 1u);
    BOOST_TEST(found.infinite.count == 2u);
    BOOST_TEST(found.infinite.first == 2u);
  }
  const auto real = scan(DType::Float64, bytes_of(parts), Wanted::FiniteAndNotNegative);
  BOOST_TEST(real.nan.count == 3u);
  BOOST_TEST(real.infinite.count == 3u);
  BOOST_TEST(real.negative.count == 1u);
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
  check(scan(DType::Float32, bytes_of(values), Wanted::Anything), {});
  check(scan(DType::Float32, bytes_of(values), Wanted::Finite), {{}, {2, 1}, {}, {}});
  check(scan(DType::Float32, bytes_of(values), Wanted::FiniteAndNotNegative),
        {{}, {2, 1}, {2, 0}, {}});
}

BOOST_AUTO_TEST_CASE(parts_add_up_in_any_order) {
  const std::vector<float> values{1.0F, NAN, INFINITY, 2.0F, -1.0F, NAN, -2.0F, NAN};
  const auto whole = scan(DType::Float32, bytes_of(values), Wanted::FiniteAndNotNegative);
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2, 3}, {3, 1, 0, 2}}) {
    optim::ValueScan sum;
    for (const size_t part : order) {
      const auto bytes = bytes_of(values).subspan(part * 8, 8);
      sum.add(scan(DType::Float32, bytes, Wanted::FiniteAndNotNegative), part * 2);
    }
    check(sum, whole);
  }
}

BOOST_AUTO_TEST_SUITE_END()
