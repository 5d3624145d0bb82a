// Hopper's symmetric product, its own source on models of the instructions: against plain sums, bit
// for bit.
#include <kernels/mirrored_product.h>

#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/placed_tensors.h"

namespace {

using namespace kernels;

struct MirroredCase {
  int64_t edge, depth, batch;
  FactorOrder order;
  TileDeal deal;
  float alpha, beta;
  int multiprocessors;
};

std::string name_of(const MirroredCase& c) {
  return std::to_string(c.batch) + " of " + std::to_string(c.edge) + " x " +
         std::to_string(c.depth) + (c.order == FactorOrder::Rows ? ", rows" : ", columns") +
         (c.deal == TileDeal::Pairs ? ", pairs" : "") + ", beta " + std::to_string(c.beta) +
         ", on " + std::to_string(c.multiprocessors);
}

using Elements = std::vector<uint16_t>;

float value_of(uint16_t bits) { return decode(ElementType::BF16, bits); }

PlacedTensor placed(const Elements& elements) {
  std::vector<unsigned char> bytes(elements.size() * 2);
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return PlacedTensor(bytes, 0);
}

// Of whole numbers from -most to most, or of a normal distribution where most is 0.
Elements drawn_elements(int64_t count, int most, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Elements elements(static_cast<size_t>(count));
  for (uint16_t& element : elements) {
    const float value =
        most == 0 ? normal(random)
                  : static_cast<float>(below(2 * static_cast<unsigned>(most) + 1, random) - most);
    element = static_cast<uint16_t>(encode(ElementType::BF16, value));
  }
  return elements;
}

Elements drawn_symmetric(const MirroredCase& c, int most, std::mt19937& random) {
  Elements elements = drawn_elements(c.edge * c.edge * c.batch, most, random);
  for (int64_t m = 0; m < c.batch; ++m) {
    uint16_t* const matrix = elements.data() + m * c.edge * c.edge;
    for (int64_t row = 0; row < c.edge; ++row) {
      for (int64_t column = 0; column < row; ++column) {
        matrix[row * c.edge + column] = matrix[column * c.edge + row];
      }
    }
  }
  return elements;
}

// In order of the factor's columns, in fp32.
Elements plain_product(const MirroredCase& c, const Elements& factor, const Elements& addend) {
  Elements result(addend.size());
  std::vector<float> rows(static_cast<size_t>(c.edge * c.depth));
  const bool has_rows = c.order == FactorOrder::Rows;
  for (int64_t m = 0; m < c.batch; ++m) {
    for (int64_t row = 0; row < c.edge; ++row) {
      for (int64_t k = 0; k < c.depth; ++k) {
        const int64_t place = has_rows ? row * c.depth + k : k * c.edge + row;
        rows[static_cast<size_t>(row * c.depth + k)] =
            value_of(factor[static_cast<size_t>(m * c.edge * c.depth + place)]);
      }
    }
    for (int64_t i = 0; i < c.edge * c.edge; ++i) {
      const float* const one = rows.data() + i / c.edge * c.depth;
      const float* const other = rows.data() + i % c.edge * c.depth;
      float sum = 0;
      for (int64_t k = 0; k < c.depth; ++k) sum += one[k] * other[k];
      const auto place = static_cast<size_t>(m * c.edge * c.edge + i);
      const float added = c.beta == 0 ? 0 : c.beta * value_of(addend[place]);
      const float value = c.beta == 0 ? c.alpha * sum : c.alpha * sum + added;
      result[place] = static_cast<uint16_t>(encode(ElementType::BF16, value));
    }
  }
  return result;
}

std::string run(const MirroredCase& c, int most, std::mt19937& random) {
  const Elements factor = drawn_elements(c.edge * c.depth * c.batch, most, random);
  const Elements addend = drawn_symmetric(c, most, random);
  PlacedTensor device_factor = placed(factor), device_addend = placed(addend);
  PlacedTensor result = placed(Elements(addend.size(), 0x7FC1));
  MirroredProduct product = {};
  product.addend = c.beta == 0 ? nullptr : device_addend.data();
  product.result = result.data();
  product.edge = c.edge;
  product.depth = c.depth;
  product.batch = c.batch;
  product.alpha = c.alpha;
  product.beta = c.beta;
  const MirroredLaunch launch = {c.order, c.deal, c.multiprocessors};
  if (map_factor({device_factor.data(), c.order, c.edge, c.depth, c.batch}, &product.factor) !=
          cudaSuccess ||
      prepare_mirrored(launch) != cudaSuccess ||
      mirrored_product(product, launch, nullptr) != cudaSuccess) {
    return "refused";
  }
  if (!result.guards_are_whole()) return "was written beside";
  const Elements expected = plain_product(c, factor, addend);
  for (size_t i = 0; i < expected.size(); ++i) {
    uint16_t found = 0;
    std::memcpy(&found, result.data() + 2 * i, sizeof found);
    if (found == expected[i]) continue;
    const auto place = static_cast<int64_t>(i) % (c.edge * c.edge);
    return "element " + std::to_string(place / c.edge) + ", " + std::to_string(place % c.edge) +
           " is " + std::to_string(value_of(found)) + ", not " +
           std::to_string(value_of(expected[i]));
  }
  return "";
}

void expect(const MirroredCase& c, int most, std::mt19937& random) {
  std::string problem;
  try {
    problem = run(c, most, random);
  } catch (const std::logic_error& error) {
    problem = error.what();
  }
  BOOST_TEST(problem == "", name_of(c) + ": " + problem);
}

template <class Value>
Value one_of(std::initializer_list<Value> values, std::mt19937& random) {
  return values.begin()[random() % values.size()];
}

bool is_long() { return std::getenv("SHARDWISE_LONG_TESTS") != nullptr; }

}  // namespace

BOOST_AUTO_TEST_SUITE(mirrored_on_the_cpu)

// Edges below a tile, of whole tiles and past them, sums shorter than a stage, with a tail, and
// longer than the ring; a block that takes one turn, and many.
BOOST_AUTO_TEST_CASE(products_are_plain_sums) {
  std::mt19937 random(1);
  for (const FactorOrder order : {FactorOrder::Rows, FactorOrder::Columns}) {
    for (const TileDeal deal : {TileDeal::Alone, TileDeal::Pairs}) {
      for (const MirroredCase& c : {MirroredCase{8, 8, 1, order, deal, 1, 0, 1},
                                    {128, 64, 1, order, deal, 1, 0, 1},
                                    {64, 456, 2, order, deal, 0.5F, 0, 1},
                                    {136, 72, 3, order, deal, 2, -1.5F, 2},
                                    {264, 200, 1, order, deal, -0.75F, 0.3F, 1},
                                    {520, 64, 1, order, deal, 1, 1, 2}}) {
        draw_order(random);
        expect(c, 0, random);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(drawn_products_are_plain_sums) {
  std::mt19937 random(2);
  for (int i = 0; i < (is_long() ? 300 : 12); ++i) {
    const MirroredCase c = {8 + 8 * below(50, random),
                            8 + 8 * below(40, random),
                            1 + below(3, random),
                            one_of({FactorOrder::Rows, FactorOrder::Columns}, random),
                            one_of({TileDeal::Alone, TileDeal::Pairs}, random),
                            one_of({1.0F, -0.3F, 2.0315F}, random),
                            one_of({0.0F, -4.775F, 1.0F}, random),
                            1 + below(5, random)};
    draw_order(random);
    expect(c, 0, random);
  }
}

// Whole numbers have one sum, whatever the order.
BOOST_AUTO_TEST_CASE(products_of_whole_numbers_are_exact) {
  std::mt19937 random(3);
  draw_order(random);
  expect({200, 328, 2, FactorOrder::Rows, TileDeal::Alone, 1, 2, 3}, 4, random);
  expect({200, 328, 2, FactorOrder::Columns, TileDeal::Pairs, 1, 2, 3}, 4, random);
}

// Each element has one sum, which both places get: an addend that is not symmetric shows where
// they would have two.
BOOST_AUTO_TEST_CASE(results_are_symmetric_bit_by_bit_whatever_the_addend_is) {
  std::mt19937 random(4);
  for (const TileDeal deal : {TileDeal::Alone, TileDeal::Pairs}) {
    constexpr int64_t kEdge = 392, kDepth = 64;
    const PlacedTensor factor = placed(drawn_elements(kEdge * kDepth, 0, random));
    const PlacedTensor addend = placed(drawn_elements(kEdge * kEdge, 0, random));
    const PlacedTensor result = placed(Elements(kEdge * kEdge, 0x7FC1));
    MirroredProduct product = {{}, addend.data(), result.data(), kEdge, kDepth, 1, 1, 1};
    const MirroredLaunch launch = {FactorOrder::Rows, deal, 2};
    BOOST_TEST(map_factor({factor.data(), FactorOrder::Rows, kEdge, kDepth, 1}, &product.factor) ==
               cudaSuccess);
    BOOST_TEST(prepare_mirrored(launch) == cudaSuccess);
    draw_order(random);
    BOOST_TEST(mirrored_product(product, launch, nullptr) == cudaSuccess);
    Elements found(kEdge * kEdge);
    std::memcpy(found.data(), result.data(), result.size());
    int different = 0;
    for (int64_t i = 0; i < kEdge * kEdge; ++i) {
      const int64_t other = i % kEdge * kEdge + i / kEdge;
      different += found[static_cast<size_t>(i)] != found[static_cast<size_t>(other)] ? 1 : 0;
    }
    BOOST_TEST(different == 0);
  }
}

BOOST_AUTO_TEST_CASE(every_tile_has_one_turn) {
  for (const TileDeal deal : {TileDeal::Alone, TileDeal::Pairs}) {
    for (int panels = 1; panels <= 40; ++panels) {
      const TileTurns turns(int64_t{panels} * kMirroredTile - 8, deal);
      std::set<std::tuple<int, int, int>> seen;
      int single = 0;
      for (int64_t number = 0; number < 2 * turns.of_matrix(); ++number) {
        const TileTurn turn = turns.at(number);
        single += turn.count == 1 ? 1 : 0;
        BOOST_REQUIRE(turn.count == 2 || turn.own[0] == turn.own[1]);
        for (int i = 0; i < turn.count; ++i) {
          const int own = turn.own[i];
          BOOST_REQUIRE(own >= 0 && own < panels && turn.shared >= 0 && turn.shared < panels);
          BOOST_REQUIRE(
              seen.insert({turn.matrix, std::min(own, turn.shared), std::max(own, turn.shared)})
                  .second);
        }
      }
      BOOST_TEST(seen.size() == static_cast<size_t>(panels * (panels + 1)));
      BOOST_TEST((deal == TileDeal::Alone || single <= 2));  // of two matrices
    }
  }
}

BOOST_AUTO_TEST_CASE(sizes_that_cannot_be_are_refused) {
  alignas(16) uint16_t memory[64] = {};
  CUtensorMap map;
  const auto maps = [&](const void* at, int64_t edge, int64_t depth, int64_t batch) {
    return map_factor({at, FactorOrder::Rows, edge, depth, batch}, &map) == cudaSuccess;
  };
  BOOST_TEST(maps(memory, 8, 8, 1));
  BOOST_TEST(!maps(memory + 1, 8, 8, 1));
  BOOST_TEST(!maps(nullptr, 8, 8, 1));
  BOOST_TEST(!maps(memory, 9, 8, 1));
  BOOST_TEST(!maps(memory, 8, 12, 1));
  BOOST_TEST(!maps(memory, 8, 8, 0));
  BOOST_TEST(!maps(memory, 0, 8, 1));
  BOOST_TEST(!maps(memory, int64_t{1} << 33, 8, 1));
  MirroredProduct product = {};
  product.edge = product.depth = 12;
  product.batch = 1;
  BOOST_TEST(mirrored_product(product, {FactorOrder::Rows, TileDeal::Alone, 1}, nullptr) ==
             cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_SUITE_END()
