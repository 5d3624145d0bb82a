#include <ckpt/statistics.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "model/element.h"
#include "support/random_tensors.h"

using ckpt::DType;
using ckpt::Statistics;
using test::MemoryPayloads;

namespace {

template <class Number>
Statistics statistics_of(DType dtype, const std::vector<Number>& numbers) {
  MemoryPayloads payloads;
  const std::string content(reinterpret_cast<const char*>(numbers.data()),
                            numbers.size() * sizeof(Number));
  const ckpt::Extents shape = {content.size() / ckpt::bytes_per_element(dtype)};
  return make_statistics(
      {"", "w", dtype, shape, {{ckpt::whole(shape), payloads.add_storage(content)}}}, payloads);
}

}  // namespace

constexpr DType kRealTypes[] = {DType::Float32,        DType::Float64,        DType::Float16,
                                DType::BFloat16,       DType::UInt8,          DType::Int8,
                                DType::Int16,          DType::Int32,          DType::Int64,
                                DType::UInt16,         DType::UInt32,         DType::UInt64,
                                DType::Bool,           DType::Float8E4M3FN,   DType::Float8E5M2,
                                DType::Float8E4M3FNUZ, DType::Float8E5M2FNUZ, DType::Float8E8M0FNU};

std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Element by element, as the definitions say.
Statistics told_simply(DType dtype, const std::string& content) {
  Statistics told;
  std::map<std::pair<bool, int>, uint64_t> bins;
  long double sum = 0, squares = 0, deviations = 0;
  std::vector<double> finite, ends;
  const size_t step = ckpt::bytes_per_element(dtype);
  for (size_t at = 0; at < content.size(); at += step) {
    const double value = ckpt::visit_element(dtype, [&](auto element) {
      return element.value(ckpt::load_bits<decltype(element)>(text_bytes(content).data() + at));
    });
    ++told.element_count;
    told.zero_count += value == 0 ? 1 : 0;
    told.nan_count += std::isnan(value) ? 1 : 0;
    told.inf_count += std::isinf(value) ? 1 : 0;
    if (!std::isnan(value)) ends.push_back(value);
    if (!std::isfinite(value)) continue;
    finite.push_back(value);
    sum += value;
    squares += static_cast<long double>(value) * value;
    if (value != 0) ++bins[{value < 0, std::clamp(std::ilogb(value), -127, 127)}];
  }
  const auto count = static_cast<long double>(finite.size());
  for (const double value : finite) {
    deviations += (value - sum / count) * (value - sum / count);
  }
  for (const auto& [bin, number] : bins) {
    told.histogram.push_back({bin.second, bin.first, number});
  }
  std::ranges::stable_sort(told.histogram, {}, [](const ckpt::HistogramBin& bin) {
    return bin.is_negative ? -1000 - bin.exponent : bin.exponent;
  });
  if (ends.empty()) return told;
  const auto [min, max] = std::ranges::minmax(ends);
  told.moments = {min, max, NAN, NAN, NAN};
  if (finite.empty()) return told;
  told.moments = {min, max, static_cast<double>(sum / count),
                  static_cast<double>(std::sqrt(deviations / count)),
                  static_cast<double>(std::sqrt(squares))};
  return told;
}

void check_same(const Statistics& a, const Statistics& b, double tolerance) {
  const auto check_near = [&](double left, double right) {
    const bool is_nowhere = std::isnan(left) && std::isnan(right);
    if (left != right && !is_nowhere)
      BOOST_TEST(left == right, boost::test_tools::tolerance(tolerance));
  };
  BOOST_TEST(a.element_count == b.element_count);
  BOOST_TEST(a.zero_count == b.zero_count);
  BOOST_TEST(a.nan_count == b.nan_count);
  BOOST_TEST(a.inf_count == b.inf_count);
  BOOST_TEST((a.histogram == b.histogram));
  BOOST_REQUIRE(a.moments.has_value() == b.moments.has_value());
  if (!a.moments) return;
  BOOST_TEST(a.moments->min == b.moments->min);
  BOOST_TEST(a.moments->max == b.moments->max);
  check_near(a.moments->mean, b.moments->mean);
  check_near(a.moments->std, b.moments->std);
  check_near(a.moments->norm, b.moments->norm);
}

BOOST_AUTO_TEST_SUITE(statistics)

BOOST_AUTO_TEST_CASE(counts_and_moments_of_few_numbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Statistics found =
      statistics_of<float>(DType::Float32, {1, 2, 3, 0, -0.0f, nan, inf, -inf});
  BOOST_TEST(found.element_count == 8u);
  BOOST_TEST(found.zero_count == 2u);
  BOOST_TEST(found.nan_count == 1u);
  BOOST_TEST(found.inf_count == 2u);
  BOOST_REQUIRE(found.moments.has_value());
  BOOST_TEST(found.moments->min == -inf);
  BOOST_TEST(found.moments->max == inf);
  BOOST_TEST(found.moments->mean == 1.2);
  BOOST_TEST(found.moments->std == std::sqrt(1.36), boost::test_tools::tolerance(1e-15));
}

BOOST_AUTO_TEST_CASE(a_large_mean_hides_no_deviation) {
  std::vector<double> numbers;
  for (int i = 0; i < 10000; ++i) numbers.push_back(1e9 + i % 2);
  const Statistics found = statistics_of(DType::Float64, numbers);
  BOOST_TEST(found.moments->mean == 1e9 + 0.5);
  BOOST_TEST(found.moments->std == 0.5, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(chunks_change_nothing) {
  test::Random random(8);
  for (int round = 0; round < 100; ++round) {
    MemoryPayloads payloads;
    const auto tensor = test::random_tensor(random, payloads);
    MemoryPayloads whole_payloads;
    ckpt::TensorEntry whole = tensor.entry;
    whole.chunks = {{ckpt::whole(whole.shape), whole_payloads.add_storage(tensor.content)}};
    const Statistics a = make_statistics(tensor.entry, payloads);
    const Statistics b = make_statistics(whole, whole_payloads);
    BOOST_TEST(a.first_values == b.first_values, boost::test_tools::per_element());
    BOOST_TEST(a.nan_count == b.nan_count);
    BOOST_REQUIRE(a.moments.has_value() == b.moments.has_value());
    if (a.moments) BOOST_TEST(a.moments->mean == b.moments->mean);
  }
}

BOOST_AUTO_TEST_CASE(what_has_no_order_has_no_moments) {
  const Statistics found = statistics_of<float>(DType::Complex64, {0, 0, 0, 1});
  BOOST_TEST(found.element_count == 2u);
  BOOST_TEST(found.zero_count == 1u);
  BOOST_TEST(!found.moments.has_value());
  BOOST_TEST(!statistics_of<float>(DType::Float32, {}).moments.has_value());
}

BOOST_AUTO_TEST_CASE(first_values_are_shown_in_row_major_order) {
  const Statistics found = statistics_of<int32_t>(DType::Int32, {5, 4, 3, 2, 1, 0, -1, -2, -3});
  const std::vector<std::string> expected = {"5", "4", "3", "2", "1", "0", "-1", "-2"};
  BOOST_TEST(found.first_values == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_type_is_as_its_elements_say) {
  test::Random random(11);
  for (const DType dtype : kRealTypes) {
    for (const size_t count : {0, 1, 7, 33, 3000, 20000}) {
      const bool is_wide = dtype == DType::Float64;  // random bits overflow in the sums
      std::string content = test::random_bytes(random, count * ckpt::bytes_per_element(dtype));
      for (size_t i = 7; is_wide && i < content.size(); i += 8) content[i] = 0x3F;
      ckpt::StatisticsSum sum(dtype);
      sum.add(text_bytes(content));
      // Random words cancel in the mean of float32, of which the largest are 2^127.
      BOOST_TEST_CONTEXT(name(dtype) << ", " << count) {
        check_same(sum.result(), told_simply(dtype, content), 1e-9);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_norm_is_the_root_of_the_sum_of_squares) {
  BOOST_TEST(statistics_of<float>(DType::Float32, {3, -4}).moments->norm == 5);
  BOOST_TEST(statistics_of<float>(DType::Float32, {-0.0f}).moments->norm == 0);
}

BOOST_AUTO_TEST_CASE(a_histogram_has_a_bin_for_each_sign_and_power_of_two) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float inf = std::numeric_limits<float>::infinity();
  const Statistics found = statistics_of<float>(
      DType::Float32,
      {-1, -1.5f, -2, 0, -0.0f, -0.0f, tiny, -tiny, 0.25f, 3, 3.9f, inf, -inf, 0x1p127f});
  const std::vector<ckpt::HistogramBin> expected = {
      {1, true, 1},   {0, true, 2},  {-127, true, 1}, {-127, false, 1},
      {-2, false, 1}, {1, false, 2}, {127, false, 1}};
  BOOST_TEST((found.histogram == expected));
}

// Blocks of one value each: 1, 2, 4, ..., every third of which is counted, for three.
BOOST_AUTO_TEST_CASE(a_histogram_of_a_part_of_the_blocks_has_the_extremes_of_all) {
  ckpt::StatisticsSum sum(DType::Float32, 3);
  for (int i = 0; i < 6; ++i) {
    std::vector<float> block(1024, std::ldexp(1.0f, i));
    block[7] = 0;
    block[8] = -0.0f;
    sum.add(std::as_bytes(std::span(block)), static_cast<uint64_t>(i));
  }
  const std::vector<ckpt::HistogramBin> expected = {{0, false, 3 * 1022}, {1, false, 1},
                                                    {2, false, 1},        {3, false, 3 * 1022},
                                                    {4, false, 1},        {5, false, 1}};
  BOOST_TEST((sum.result().histogram == expected));
  BOOST_TEST(sum.result().zero_count == 12u);
}

BOOST_AUTO_TEST_CASE(a_double_beyond_float_is_in_the_outer_bins) {
  const Statistics found = statistics_of<double>(DType::Float64, {1e300, -1e-300});
  const std::vector<ckpt::HistogramBin> expected = {{-127, true, 1}, {127, false, 1}};
  BOOST_TEST((found.histogram == expected));
}

// Of a sum, its count and what its squares are the root of.
BOOST_AUTO_TEST_CASE(sums_of_float64_do_not_cancel) {
  struct Row {
    std::vector<double> numbers;
    double mean, norm;
  };
  const double most = std::numeric_limits<double>::max();
  const double least = std::numeric_limits<double>::denorm_min();
  const std::vector<Row> rows = {
      {{1e16, 1, -1e16}, 1.0 / 3, std::sqrt(2.0) * 1e16},
      {{1, 1e100, 1, -1e100}, 0.5, std::sqrt(2.0) * 1e100},
      {{most, most, -most, -most}, 0, INFINITY},
      {{most / 2, most / 2, most / 4, most / 4}, INFINITY, most * std::sqrt(0.625)},
      {{3e200, 4e200}, 3.5e200, 5e200},
      {{3e-200, 4e-200}, 3.5e-200, 5e-200},
      {{3 * least, 4 * least}, 3.5 * least, 5 * least},
      {{1e-200, 1e200}, 0.5e200, 1e200}};
  for (const Row& row : rows) {
    const auto found = *statistics_of(DType::Float64, row.numbers).moments;
    for (const auto& [is, wanted] : {std::pair(found.mean, row.mean), {found.norm, row.norm}}) {
      if (is != wanted) BOOST_TEST(is == wanted, boost::test_tools::tolerance(1e-15));
    }
  }
  // Over several blocks, too.
  std::vector<double> numbers(3000, 0);
  numbers[0] = 1e16;
  numbers[1] = 1;
  numbers[2999] = -1e16;
  BOOST_TEST(statistics_of(DType::Float64, numbers).moments->mean == 1.0 / 3000);
}

BOOST_AUTO_TEST_CASE(deviations_of_extreme_numbers_are_theirs) {
  for (const double scale : {1e-300, 1e-160, 1.0, 1e160, 1e300}) {
    std::vector<double> numbers;
    for (int i = 0; i < 2000; ++i) numbers.push_back(scale * (1000 + i % 2));
    const auto found = *statistics_of(DType::Float64, numbers).moments;
    BOOST_TEST(found.std == 0.5 * scale, boost::test_tools::tolerance(1e-9));
    BOOST_TEST(found.mean == 1000.5 * scale, boost::test_tools::tolerance(1e-15));
  }
}

BOOST_AUTO_TEST_CASE(ends_of_64_bit_integers_are_exact) {
  constexpr int64_t kLow = -9007199254740993, kHigh = 9223372036854775807;
  const auto found = statistics_of<int64_t>(DType::Int64, {0, kHigh, kLow, 5});
  BOOST_TEST(static_cast<int64_t>(found.integers->min) == kLow);
  BOOST_TEST(static_cast<int64_t>(found.integers->max) == kHigh);
  const auto big = statistics_of<uint64_t>(DType::UInt64, {~uint64_t{0}, ~uint64_t{0} - 1});
  BOOST_TEST(big.integers->min == ~uint64_t{0} - 1);
  BOOST_TEST(big.integers->max == ~uint64_t{0});
  const int64_t large = int64_t{1} << 60;
  BOOST_TEST(statistics_of<int64_t>(DType::Int64, {large, 1, -large}).moments->mean == 1.0 / 3);
  BOOST_TEST(!statistics_of<int32_t>(DType::Int32, {1}).integers.has_value());
}

BOOST_AUTO_TEST_CASE(infinities_are_ends) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  struct Row {
    std::vector<double> numbers;
    double min, max;
  };
  for (const Row& row : {Row{{1, inf}, 1, inf}, Row{{-inf, 1}, -inf, 1}, Row{{inf}, inf, inf},
                         Row{{-inf, nan}, -inf, -inf}, Row{{inf, -inf, 0}, -inf, inf}}) {
    const auto found = statistics_of(DType::Float64, row.numbers).moments;
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST(found->min == row.min);
    BOOST_TEST(found->max == row.max);
  }
  BOOST_TEST(!statistics_of<double>(DType::Float64, {nan}).moments.has_value());
  BOOST_TEST(std::isnan(statistics_of<double>(DType::Float64, {inf}).moments->norm));
}

BOOST_AUTO_TEST_CASE(a_sum_beyond_double_is_infinite) {
  const double most = std::numeric_limits<double>::max();
  const Statistics found = statistics_of<double>(DType::Float64, std::vector<double>(2000, most));
  BOOST_TEST(found.inf_count == 0u);
  BOOST_TEST(found.moments->mean == std::numeric_limits<double>::infinity());
  BOOST_TEST(found.moments->max == most);
}

// What threads do: blocks in any order, summed in any groups.
BOOST_AUTO_TEST_CASE(the_order_of_blocks_changes_no_bit) {
  test::Random random(12);
  constexpr size_t kBlock = ckpt::StatisticsSum::kBlockBytes;
  const std::string content = test::random_bytes(random, 37 * kBlock + 12);
  ckpt::StatisticsSum at_once(DType::Float32);
  at_once.add(text_bytes(content));
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> order;
    for (size_t at = 0; at < content.size(); at += kBlock) order.push_back(at);
    for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random() % (i + 1)]);
    std::vector<ckpt::StatisticsSum> sums;
    for (int i = 0; i < 5; ++i) sums.emplace_back(DType::Float32);
    for (const size_t at : order) {
      const size_t count = std::min(kBlock, content.size() - at);
      sums[random() % 5].add(text_bytes(content).subspan(at, count));
    }
    for (size_t i = 1; i < sums.size(); ++i) sums[0].add(sums[i]);
    check_same(sums[0].result(), at_once.result(), 0);
  }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  test::Random random(13);
  MemoryPayloads payloads;
  std::vector<ckpt::TensorEntry> tensors;
  for (const uint64_t count : {0, 5, 1000, 10'000'000}) {  // the last one in several parts
    const std::string content = test::random_bytes(random, 4 * count);
    tensors.push_back({"",
                       "w",
                       DType::Float32,
                       {count},
                       {{ckpt::whole({count}), payloads.add_storage(content)}}});
  }
  ckpt::ExecuteOptions options;
  options.threads = 1;
  const std::vector<Statistics> one = make_statistics(tensors, payloads, options);
  options.threads = 3;
  const std::vector<Statistics> three = make_statistics(tensors, payloads, options);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Statistics alone = make_statistics(tensors[i], payloads);
    check_same(one[i], alone, 0);
    check_same(three[i], alone, 0);
    BOOST_TEST(three[i].first_values == alone.first_values, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()
