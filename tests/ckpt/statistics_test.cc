#include <ckpt/statistics.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

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
  BOOST_TEST(found.moments->min == 0);
  BOOST_TEST(found.moments->max == 3);
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

BOOST_AUTO_TEST_SUITE_END()
