// How symmetric products are cut: by a model, which is never asked to do what it says is slower.
#include <kernels/symmetric_plan.h>

#include <algorithm>
#include <random>
#include <string>

#include <boost/test/unit_test.hpp>

namespace {

using namespace kernels;

constexpr ElementType kF32 = ElementType::F32, kBF16 = ElementType::BF16;

struct Drawn {
  DeviceRates rates;
  SymmetricShape shape;
};

template <class Value>
Value one_of(std::initializer_list<Value> values, std::mt19937& random) {
  return values.begin()[random() % values.size()];
}

Drawn drawn(std::mt19937& random) {
  DeviceRates rates;
  rates.multiprocessors = 1 + static_cast<int>(random() % 256);
  rates.cycles_per_second = 1e9 + 1e6 * static_cast<int>(random() % 2000);
  rates.bytes_per_second = 1e11 * (1 + static_cast<int>(random() % 100));
  rates.major = one_of({7, 8, 9, 10, 12}, random);
  rates.minor = static_cast<int>(random() % 2) * 9;
  const int64_t side = one_of<int64_t>({64, 128, 192, 256}, random);
  SymmetricShape shape = {};
  shape.edge = 1 + static_cast<int64_t>(random() % one_of<unsigned>({40, 3000, 20000}, random));
  shape.k =
      shape.edge + static_cast<int64_t>(random() % 2) * static_cast<int64_t>(random() % 60000);
  shape.batch = 1 + static_cast<int64_t>(random() % one_of<unsigned>({1, 64}, random));
  shape.type = one_of({kF32, kBF16}, random);
  shape.tf32 = random() % 2 == 0;
  shape.tile = {side, side == 256 ? 128 : one_of<int64_t>({64, 128, 256}, random)};
  shape.allows_mirrored = random() % 2 == 0;
  if (random() % 2 == 0) {
    shape.edge = (shape.edge + 7) / 8 * 8;
    shape.k = (shape.k + 7) / 8 * 8;
  }
  return {rates, shape};
}

// What a plan costs, from the products that it would be made of.
double cost_of(const Drawn& d, int64_t block) {
  NsProduct whole = {};
  whole.m = whole.n = d.shape.edge;
  whole.k = d.shape.k;
  double seconds = block == 0 ? 0 : mirror_seconds(d.rates, d.shape, block);
  for (const NsProduct& part : blocks_of(whole, block)) {
    seconds += product_seconds(d.rates, d.shape, part.m, part.n);
  }
  return seconds;
}

TileDeal deal_of(SymmetricBy by) {
  return by == SymmetricBy::TilesInPairs ? TileDeal::Pairs : TileDeal::Alone;
}

// Microseconds of a symmetric product on an H100 (SXM, 80 GB), with the tile that cuBLASLt took,
// and of blocks the fastest cut: scripts/gpu_check --part symmetric_model, 2026-11-26.
struct Measured {
  SymmetricShape shape;
  double whole;
  int64_t block;
  double in_blocks, alone, in_pairs;
};
const Measured kMeasured[] = {
    {{256, 256, 64, kBF16, false, {128, 128}, true}, 7.1, 128, 22.6, 12.5, 12.9},
    {{512, 512, 8, kBF16, false, {128, 128}, true}, 6.5, 256, 18.8, 11.2, 14.3},
    {{512, 512, 64, kBF16, false, {256, 128}, true}, 32.9, 256, 69.3, 34.9, 42.7},
    {{512, 2048, 16, kBF16, false, {256, 128}, true}, 26.1, 256, 46.4, 33.0, 31.2},
    {{768, 768, 32, kBF16, false, {128, 256}, true}, 45.9, 384, 83.2, 46.4, 49.9},
    {{1024, 1024, 1, kBF16, false, {128, 64}, true}, 7.1, 512, 19.2, 13.3, 18.6},
    {{1024, 1024, 4, kBF16, false, {256, 128}, true}, 14.5, 512, 29.5, 18.8, 18.7},
    {{1024, 1024, 16, kBF16, false, {256, 128}, true}, 50.8, 512, 79.1, 45.6, 54.3},
    {{1024, 4096, 4, kBF16, false, {256, 128}, true}, 45.3, 512, 66.2, 50.2, 48.0},
    {{1536, 1536, 8, kBF16, false, {128, 256}, true}, 79.4, 768, 100.1, 58.0, 69.4},
    {{2048, 2048, 1, kBF16, false, {256, 128}, true}, 24.3, 1024, 39.3, 28.6, 28.5},
    {{2048, 2048, 4, kBF16, false, {256, 128}, true}, 90.7, 1024, 105.1, 69.3, 85.4},
    {{2048, 8192, 1, kBF16, false, {256, 128}, true}, 85.0, 1024, 105.9, 91.7, 85.4},
    {{3072, 3072, 1, kBF16, false, {128, 256}, true}, 74.7, 1536, 105.7, 62.1, 76.0},
    {{4096, 4096, 1, kBF16, false, {256, 128}, true}, 171.5, 2048, 163.4, 110.7, 101.6},
    {{4096, 4096, 4, kBF16, false, {128, 256}, true}, 698.9, 1024, 591.0, 473.2, 397.5},
    {{4096, 11008, 1, kBF16, false, {256, 128}, true}, 452.1, 2048, 370.8, 368.9, 265.0},
    {{5120, 5120, 1, kBF16, false, {128, 256}, true}, 335.6, 2560, 312.7, 245.6, 239.1},
    {{6144, 6144, 1, kBF16, false, {128, 256}, true}, 571.4, 2048, 464.7, 406.7, 364.4},
    {{8192, 8192, 1, kBF16, false, {128, 256}, true}, 1458.7, 2048, 1101.9, 1075.1, 779.4},
    {{8192, 28672, 1, kBF16, false, {128, 256}, true}, 5276.7, 2048, 3232.4, 5312.9, 4024.3}};

std::string name_of(const SymmetricShape& shape) {
  return std::to_string(shape.batch) + " of " + std::to_string(shape.edge) + " x " +
         std::to_string(shape.k);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(symmetric_plans)

BOOST_AUTO_TEST_CASE(no_cut_is_chosen_that_the_model_says_is_slower) {
  std::mt19937 random(1);
  int cuts = 0, mirrored = 0;
  for (int i = 0; i < 30000; ++i) {
    const Drawn d = drawn(random);
    const SymmetricPlan plan = plan_symmetric(d.rates, d.shape);
    const double plain = cost_of(d, 0);
    BOOST_REQUIRE_CLOSE(plan.plain_seconds, plain, 1e-9);
    if (plan.by != SymmetricBy::CublasLt) {
      mirrored += 1;
      BOOST_REQUIRE(d.shape.allows_mirrored && can_be_mirrored(d.rates, d.shape));
      BOOST_REQUIRE_EQUAL(plan.seconds, mirrored_seconds(d.rates, d.shape, deal_of(plan.by)));
      BOOST_REQUIRE_LE(plan.seconds, plain * (1 - kCutGainLeast));
      BOOST_REQUIRE_EQUAL(plan.block, 0);
      continue;
    }
    BOOST_REQUIRE_CLOSE(plan.seconds, cost_of(d, plan.block), 1e-9);
    if (plan.block == 0) {
      BOOST_REQUIRE_EQUAL(plan.seconds, plain);
      continue;
    }
    cuts += 1;
    BOOST_REQUIRE_LE(plan.seconds, plain * (1 - kCutGainLeast));
    BOOST_REQUIRE_EQUAL(plan.block % kMirrorTile, 0);
    BOOST_REQUIRE_LT(plan.block, d.shape.edge);
  }
  BOOST_TEST(cuts > 1000);
  BOOST_TEST(mirrored > 100);
}

BOOST_AUTO_TEST_CASE(a_plan_is_the_best_of_equal_parts) {
  std::mt19937 random(2);
  for (int i = 0; i < 5000; ++i) {
    Drawn d = drawn(random);
    d.shape.allows_mirrored = false;
    const SymmetricPlan plan = plan_symmetric(d.rates, d.shape);
    const int64_t side = std::min(d.shape.tile.rows, d.shape.tile.columns);
    for (int64_t parts = 2; parts <= 8; ++parts) {
      const int64_t each = (d.shape.edge + parts - 1) / parts;
      const int64_t block = (each + side - 1) / side * side;
      if (block >= d.shape.edge) continue;
      const double seconds = cost_of(d, block);
      const bool is_worth_it = seconds <= plan.plain_seconds * (1 - kCutGainLeast);
      BOOST_REQUIRE(!is_worth_it || seconds >= plan.seconds * (1 - 1e-12));
    }
  }
}

// The fastest of all, and only where it is allowed, on Hopper, in bf16, and of sizes that it takes.
BOOST_AUTO_TEST_CASE(our_own_kernel_is_chosen_where_it_can_be_and_is_the_fastest) {
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    Drawn d = drawn(random);
    d.shape.allows_mirrored = false;
    const SymmetricPlan without = plan_symmetric(d.rates, d.shape);
    BOOST_REQUIRE(without.by == SymmetricBy::CublasLt);
    d.shape.allows_mirrored = true;
    const SymmetricPlan with = plan_symmetric(d.rates, d.shape);
    double best = without.seconds;
    for (const TileDeal deal : {TileDeal::Alone, TileDeal::Pairs}) {
      const double seconds = mirrored_seconds(d.rates, d.shape, deal);
      if (can_be_mirrored(d.rates, d.shape) &&
          seconds <= with.plain_seconds * (1 - kCutGainLeast)) {
        best = std::min(best, seconds);
      }
    }
    BOOST_REQUIRE_EQUAL(with.seconds, best);
  }
  const SymmetricShape shape = {1024, 1024, 1, kBF16, false, {}};
  const auto can_be = [&](auto change) {
    Drawn d = {{}, shape};
    change(d);
    return can_be_mirrored(d.rates, d.shape);
  };
  BOOST_TEST(can_be([](Drawn&) {}));
  BOOST_TEST(!can_be([](Drawn& d) { d.rates.major = 10; }));
  BOOST_TEST(!can_be([](Drawn& d) { d.rates.major = 8; }));
  BOOST_TEST(!can_be([](Drawn& d) { d.rates.minor = 3; }));
  BOOST_TEST(!can_be([](Drawn& d) { d.shape.type = kF32; }));
  BOOST_TEST(!can_be([](Drawn& d) { d.shape.edge = 1028; }));
  BOOST_TEST(!can_be([](Drawn& d) { d.shape.k = 1028; }));
}

BOOST_AUTO_TEST_CASE(a_mirror_copies_what_lies_below_the_diagonals_blocks) {
  DeviceRates rates;
  rates.bytes_per_second = 1;
  for (const int64_t block : {32, 64, 96, 1024}) {
    const SymmetricShape shape = {250, 250, 3, kBF16, false, {}};
    double mirrored = 0;
    for (int64_t row = 0; row < shape.edge; ++row) {
      for (int64_t column = 0; column < shape.edge; ++column) {
        mirrored += is_mirrored(row, column, block) ? 1 : 0;
      }
    }
    BOOST_TEST(mirror_seconds(rates, shape, block) - kLaunchSeconds == 2.0 * 2 * 3 * mirrored,
               boost::test_tools::tolerance(1e-9));
  }
}

BOOST_AUTO_TEST_CASE(usual_shapes_are_cut_where_that_saves_time) {
  struct Row {
    int64_t rows, columns, batch;
    int multiprocessors;
    int64_t gram, polynomial;
  };
  for (const Row& row : {Row{4096, 4096, 1, 132, 2048, 2048},
                         {4096, 11008, 1, 132, 2048, 2048},
                         {11008, 4096, 1, 132, 2048, 2048},
                         {2048, 2048, 1, 132, 0, 0},  // waves would be saved, and launches lose it
                         {1024, 1024, 16, 132, 0, 0},
                         {512, 512, 64, 132, 0, 0},
                         {1024, 1024, 1, 132, 0, 0},
                         {1024, 16384, 16, 132, 512, 0},  // a long sum is worth launches
                         {4096, 4096, 1, 108, 0, 0},
                         {64, 64, 1, 132, 0, 0},
                         {1, 5, 1, 132, 0, 0}}) {
    NewtonSchulzShape shape = {row.rows, row.columns, row.batch, kBF16, false};
    DeviceRates rates;
    rates.multiprocessors = row.multiprocessors;
    choose_blocks(rates, {}, {}, shape);
    const auto name = [&] {
      return std::to_string(row.rows) + " x " + std::to_string(row.columns) + ", " +
             std::to_string(row.batch) + " on " + std::to_string(row.multiprocessors);
    };
    BOOST_TEST(shape.gram_block == row.gram, name());
    BOOST_TEST(shape.polynomial_block == row.polynomial, name());
  }
}

BOOST_AUTO_TEST_CASE(plans_are_within_three_hundredths_of_the_fastest_that_an_h100_measured) {
  for (const Measured& m : kMeasured) {
    const SymmetricPlan plan = plan_symmetric({}, m.shape);
    BOOST_TEST((plan.block == 0 || plan.block == m.block), name_of(m.shape));
    const double taken = plan.by == SymmetricBy::TilesAlone     ? m.alone
                         : plan.by == SymmetricBy::TilesInPairs ? m.in_pairs
                         : plan.block == 0                      ? m.whole
                                                                : m.in_blocks;
    const double fastest = std::min({m.whole, m.in_blocks, m.alone, m.in_pairs});
    BOOST_TEST(taken <= 1.03 * fastest, name_of(m.shape));
  }
}

// What a step takes of our own kernel on an H100, by the model.
BOOST_AUTO_TEST_CASE(usual_shapes_go_to_our_own_kernel_where_it_is_allowed) {
  struct Row {
    int64_t rows, columns, batch;
    SymmetricBy gram, polynomial;
  };
  constexpr auto kBlas = SymmetricBy::CublasLt, kAlone = SymmetricBy::TilesAlone,
                 kPairs = SymmetricBy::TilesInPairs;
  for (const Row& row : {Row{4096, 4096, 1, kPairs, kPairs},
                         {4096, 11008, 1, kPairs, kPairs},
                         {11008, 4096, 1, kPairs, kPairs},
                         {8192, 28672, 1, kBlas, kPairs},  // blocks are less bound by the cache
                         {2048, 2048, 1, kBlas, kBlas},    // 68 turns leave half a device idle
                         {1024, 1024, 16, kAlone, kAlone},
                         {512, 512, 64, kBlas, kBlas},
                         {1024, 1024, 1, kBlas, kBlas},
                         {1020, 1024, 1, kBlas, kBlas}}) {
    NewtonSchulzShape shape = {row.rows, row.columns, row.batch, kBF16, false};
    shape.allows_mirrored = true;
    choose_blocks({}, {}, {}, shape);
    const std::string name = std::to_string(row.rows) + " x " + std::to_string(row.columns);
    BOOST_TEST((shape.gram_by == row.gram), name);
    BOOST_TEST((shape.polynomial_by == row.polynomial), name);
    BOOST_TEST((shape.gram_by == kBlas || shape.gram_block == 0), name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
