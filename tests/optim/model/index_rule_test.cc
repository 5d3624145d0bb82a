#include "huggingface/index_rule.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <boost/test/unit_test.hpp>

// Axes out of the places where vectors stand.
BOOST_AUTO_TEST_SUITE(index_rule)

using optim::IndexPart;
using optim::IndexRule;
using Places = std::vector<optim::VectorPlace>;

bool operator_equal(const Places& a, const Places& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.source == y.source && x.index == y.index;
  });
}

// What a rule says: the target's axes from the outermost on, parts one behind the other.
void expand(const IndexRule& rule, size_t axis, const std::vector<IndexPart>& at, Places& made) {
  if (axis == rule.parts[0].axes.size()) {
    made.push_back({at[0].source, at[0].base});
    return;
  }
  const auto go_on = [&](std::vector<IndexPart> inner, uint64_t step) {
    for (IndexPart& part : inner) part.base += step * part.axes[axis].stride;
    expand(rule, axis + 1, inner, made);
  };
  if (rule.joined != axis) {
    for (uint64_t i = 0; i < at[0].axes[axis].size; ++i) go_on(at, i);
    return;
  }
  for (const IndexPart& part : at) {
    for (uint64_t i = 0; i < part.axes[axis].size; ++i) go_on({part}, i);
  }
}

Places expanded(const IndexRule& rule) {
  Places made;
  expand(rule, 0, rule.parts, made);
  return made;
}

// A matrix of axes, of which each is cut, in another order.
Places random_places(std::mt19937& random, uint64_t& source_size) {
  const size_t count = 1 + random() % 4;
  std::vector<uint64_t> sizes(count), first(count), taken(count), strides(count);
  source_size = 1;
  for (size_t i = count; i-- > 0;) {
    sizes[i] = 2 + random() % 4;
    first[i] = random() % 2;
    taken[i] = std::min<uint64_t>(sizes[i] - first[i], 1 + random() % sizes[i]);
    strides[i] = source_size;
    source_size *= sizes[i];
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  Places places = {{0, 0}};
  for (const size_t axis : order) {
    Places longer;
    for (const auto& place : places) {
      for (uint64_t i = 0; i < taken[axis]; ++i) {
        longer.push_back({0, place.index + (first[axis] + i) * strides[axis]});
      }
    }
    places = std::move(longer);
  }
  return places;
}

BOOST_AUTO_TEST_CASE(any_axes_are_found_and_are_axes_of_the_source) {
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    uint64_t source_size = 0;
    const Places places = random_places(random, source_size);
    const auto rule = optim::find_index_rule(places);
    BOOST_REQUIRE_MESSAGE(rule, "round " << round);
    BOOST_REQUIRE_MESSAGE(operator_equal(expanded(*rule), places), "round " << round);
    const auto with = optim::with_radix(*rule, {source_size});
    if (with) BOOST_REQUIRE_MESSAGE(operator_equal(expanded(*with), places), "round " << round);
  }
}

BOOST_AUTO_TEST_CASE(queries_keys_and_values_of_groups_have_a_radix_each) {
  // Rows of 3 groups, each of 4 queries, a key and a value, of 5 rows.
  for (const auto& [first, count] : {std::pair{0, 4}, {4, 1}, {5, 1}}) {
    Places places;
    for (uint64_t group = 0; group < 3; ++group) {
      for (int i = 0; i < count * 5; ++i) {
        places.push_back({0, group * 30 + static_cast<uint64_t>(first * 5 + i)});
      }
    }
    const auto rule = optim::with_radix(*optim::find_index_rule(places), {90});
    BOOST_REQUIRE(rule);
    const auto radix = optim::radix_of(rule->parts[0], 90);
    BOOST_REQUIRE(radix);
    BOOST_TEST(radix->axes.size() == 2);
    BOOST_TEST(radix->axes[1].first == static_cast<uint64_t>(first * 5));
    BOOST_TEST(radix->axes[1].count == static_cast<uint64_t>(count * 5));
    BOOST_TEST(radix->row_count == 90);
  }
}

BOOST_AUTO_TEST_CASE(segments_of_unequal_sizes_become_parts) {
  // Of each of 4 heads 2 rows of a first block, 2 of a second, 6 of a third.
  Places places;
  for (uint64_t head = 0; head < 4; ++head) {
    for (const auto& [begin, rows] : {std::pair<uint64_t, uint64_t>{0, 2}, {8, 2}, {16, 6}}) {
      for (uint64_t i = 0; i < rows; ++i) places.push_back({0, begin + head * rows + i});
    }
  }
  const auto rule = optim::find_index_rule(places);
  BOOST_REQUIRE(rule);
  BOOST_TEST(rule->parts.size() == 3);
  BOOST_TEST(operator_equal(expanded(*rule), places));
  const auto radix = optim::radix_of(rule->parts[2], 40);
  BOOST_REQUIRE(radix);
  BOOST_TEST(radix->first_row == 16);
  BOOST_TEST(radix->row_count == 24);
}

BOOST_AUTO_TEST_CASE(unknown_places_are_taken_as_their_neighbours_say) {
  Places places;
  for (uint64_t i = 0; i < 60; ++i) places.push_back({0, i % 20 + i / 20 * 40});
  Places known = places;
  for (const size_t hole : {0, 7, 8, 30, 59}) known[hole] = {};
  const auto rule = optim::find_index_rule(known);
  BOOST_REQUIRE(rule);
  BOOST_TEST(operator_equal(expanded(*rule), places));
}

BOOST_AUTO_TEST_CASE(what_has_no_order_has_no_rule) {
  std::mt19937 random(2);
  Places places;
  for (uint64_t i = 0; i < 64; ++i) places.push_back({0, i});
  std::ranges::shuffle(places, random);
  BOOST_TEST(!optim::find_index_rule(places));
  std::ranges::sort(places, std::greater(), &optim::VectorPlace::index);
  BOOST_TEST(!optim::find_index_rule(places));
  BOOST_TEST(!optim::find_index_rule(Places(4)));
  BOOST_TEST(!optim::find_index_rule({}));
}

BOOST_AUTO_TEST_CASE(axes_are_cut_where_the_target_s_dimensions_are) {
  const IndexRule rule{{{0, 0, {{12, 1}}}}, {}};
  const auto cut = optim::cut_at_dims(rule, {3, 4});
  BOOST_REQUIRE(cut);
  BOOST_TEST((cut->parts[0].axes == std::vector<optim::IndexAxis>{{3, 4}, {4, 1}}));
  BOOST_TEST(!optim::cut_at_dims(rule, {5, 4}));
}

BOOST_AUTO_TEST_SUITE_END()
