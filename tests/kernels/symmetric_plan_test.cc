// How symmetric products are cut: by a model, which is never asked to do what it says is slower.
#include <kernels/symmetric_plan.h>

#include <algorithm>
#include <random>

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

}  // namespace

BOOST_AUTO_TEST_SUITE(symmetric_plans)

BOOST_AUTO_TEST_CASE(no_cut_is_chosen_that_the_model_says_is_slower) {
  std::mt19937 random(1);
  int cuts = 0, mirrored = 0;
  for (int i = 0; i < 20000; ++i) {
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

// What a step would take of our own kernel on an H100, by the model, if it were allowed to.
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
                         {1024, 1024, 16, kPairs, kPairs},
                         {512, 512, 64, kPairs, kPairs},
                         {1024, 1024, 1, kAlone, kAlone},
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
