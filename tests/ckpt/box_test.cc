#include <ckpt/box.h>
#include <ckpt/dtype.h>
#include <ckpt/flat_range.h>

#include <boost/test/unit_test.hpp>
#include <numeric>
#include <random>

#include "model/check_catalog.h"
#include "model/overlap_index.h"
#include "support/errors.h"

using ckpt::Box;
using ckpt::DType;
using ckpt::Extents;

namespace {

// Row-major positions, within `outer`, of the elements of a box that lies in it.
std::vector<uint64_t> positions(const Box& outer, const Box& box) {
  std::vector<uint64_t> result{0};
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    std::vector<uint64_t> next;
    for (const uint64_t position : result) {
      for (uint64_t i = 0; i < box.sizes[d]; ++i) {
        next.push_back(position * outer.sizes[d] + box.offsets[d] - outer.offsets[d] + i);
      }
    }
    result = std::move(next);
  }
  return result;
}

Box random_box(std::mt19937& random, const Extents& shape) {
  Box box = ckpt::whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    box.offsets[d] = random() % shape[d];
    box.sizes[d] = 1 + random() % (shape[d] - box.offsets[d]);
  }
  return box;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(box)

BOOST_AUTO_TEST_CASE(boxes_meet_in_what_both_hold) {
  const Box a{{0, 4}, {4, 4}};
  BOOST_TEST((ckpt::intersect(a, {{2, 6}, {4, 4}}) == Box{{2, 6}, {2, 2}}));
  BOOST_TEST(!ckpt::intersect(a, {{4, 4}, {1, 1}}).has_value());  // they touch
  BOOST_TEST(!ckpt::intersect(a, {{0, 4}, {0, 4}}).has_value());  // nothing in it
  BOOST_TEST(!ckpt::intersect(a, {{0}, {4}}).has_value());        // another tensor's
  BOOST_TEST((ckpt::intersect(Box{}, Box{}) == Box{}));           // the one element of a scalar
  const uint64_t max = ~uint64_t{0};
  BOOST_TEST((ckpt::intersect(Box{{1}, {max}}, Box{{5}, {2}}) == Box{{5}, {2}}));
}

BOOST_AUTO_TEST_CASE(element_counts_beyond_63_bits_are_refused) {
  BOOST_TEST(ckpt::element_count({}) == 1);
  BOOST_TEST(ckpt::element_count({3, 5}) == 15);
  BOOST_TEST(ckpt::element_count({uint64_t{1} << 62, 1}) == uint64_t{1} << 62);
  BOOST_TEST(ckpt::element_count({uint64_t{1} << 63, 0}) == 0);
  for (const Extents& sizes : {Extents{uint64_t{1} << 63}, Extents{uint64_t{1} << 32, 1u << 31},
                               Extents{~uint64_t{0}, ~uint64_t{0}}}) {
    const auto error = test::error_of([&] { (void)ckpt::element_count(sizes); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  }
}

BOOST_AUTO_TEST_CASE(row_major_strides_are_those_of_torch_also_for_empty_tensors) {
  BOOST_TEST(ckpt::row_major_strides({}) == Extents{});
  BOOST_TEST((ckpt::row_major_strides({2, 3, 5}) == Extents{15, 5, 1}));
  BOOST_TEST((ckpt::row_major_strides({2, 0, 5}) == Extents{5, 5, 1}));
}

// tests/interop/test_large_sizes.py asks torch the same.
BOOST_AUTO_TEST_CASE(shapes_that_overflow_beside_a_0_are_refused) {
  const uint64_t max = ~uint64_t{0} >> 1, half = uint64_t{1} << 32;
  for (const Extents& shape : {Extents{}, {0, max}, {max, 0, max}, {half, half / 2, 0}}) {
    BOOST_CHECK_NO_THROW(ckpt::check_shape(shape));
  }
  for (const Extents& shape :
       {Extents{0, max + 1}, {half, half, 0}, {0, half, half / 2}, {half, half / 2}}) {
    const auto error = test::error_of([&] { ckpt::check_shape(shape); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  }
}

BOOST_AUTO_TEST_CASE(every_dtype_is_found_under_its_torch_name) {
  for (int i = 0; i <= static_cast<int>(DType::Float8E8M0FNU); ++i) {
    const auto dtype = static_cast<DType>(i);
    BOOST_TEST((ckpt::dtype_named(ckpt::name(dtype)) == dtype));
    BOOST_TEST(ckpt::bytes_per_element(dtype) > 0);
  }
  BOOST_TEST((ckpt::dtype_named("bfloat16") == DType::BFloat16));
  BOOST_TEST(ckpt::bytes_per_element(DType::Complex128) == 16);
  BOOST_TEST(!ckpt::dtype_named("qint8").has_value());
}

BOOST_AUTO_TEST_CASE(a_flat_range_is_at_most_two_boxes_a_dimension_and_keeps_the_order) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Extents shape(random() % 5);
    for (uint64_t& size : shape) size = 1 + random() % 4;
    const Box outer = random_box(random, shape);
    const uint64_t total = ckpt::element_count(outer.sizes);
    const uint64_t first = random() % total;
    const uint64_t count = 1 + random() % (total - first);
    std::vector<uint64_t> seen;
    const auto boxes = ckpt::boxes_of_flat_range(outer, first, count);
    for (const Box& part : boxes) {
      const auto at = positions(outer, part);
      BOOST_REQUIRE(at.back() - at.front() + 1 == at.size());  // contiguous
      BOOST_REQUIRE(ckpt::first_of_run(outer, part) == at.front());
      seen.insert(seen.end(), at.begin(), at.end());
    }
    std::vector<uint64_t> expected(count);
    std::iota(expected.begin(), expected.end(), first);
    BOOST_REQUIRE(seen == expected);
    BOOST_REQUIRE(boxes.size() <= std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
  }
  BOOST_TEST(ckpt::boxes_of_flat_range(ckpt::whole({0, 3}), 0, 0).empty());
}

BOOST_AUTO_TEST_CASE(a_part_is_a_run_where_its_positions_follow_each_other) {
  std::mt19937 random(3);
  size_t runs = 0;
  for (int round = 0; round < 2000; ++round) {
    Extents shape(random() % 5);
    for (uint64_t& size : shape) size = 1 + random() % 4;
    const Box outer = random_box(random, shape);
    Box part = random_box(random, outer.sizes);
    for (size_t d = 0; d < shape.size(); ++d) part.offsets[d] += outer.offsets[d];
    const auto at = positions(outer, part);
    const bool is_run = at.back() - at.front() + 1 == at.size();
    runs += is_run;
    const auto first = ckpt::first_of_run(outer, part);
    BOOST_REQUIRE(first.has_value() == is_run);
    if (first) BOOST_REQUIRE(*first == at.front());
  }
  BOOST_TEST(runs > 0u);
  BOOST_TEST(runs < 2000u);
}

BOOST_AUTO_TEST_CASE(the_index_finds_what_testing_every_box_finds) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    Extents shape(random() % 4);
    for (uint64_t& size : shape) size = 1 + random() % 6;
    std::vector<Box> boxes(random() % 12);
    for (Box& box : boxes) box = random_box(random, shape);
    const Box query = random_box(random, shape);
    std::vector<ckpt::CopyOp> copies;
    for (const Box& box : boxes) copies.push_back({0, 0, box});
    const auto found = ckpt::OverlapIndex(copies).find(query);
    size_t next = 0;
    for (uint32_t i = 0; i < boxes.size(); ++i) {
      const auto expected = ckpt::intersect(boxes[i], query);
      if (!expected) continue;
      BOOST_REQUIRE(next < found.size());
      BOOST_REQUIRE(found[next].box == i);
      BOOST_REQUIRE((found[next].part == *expected));
      ++next;
    }
    BOOST_REQUIRE(next == found.size());
  }
}

BOOST_AUTO_TEST_SUITE_END()
