#include <optim/optimized_param.h>

#include <bit>
#include <cmath>
#include <limits>

#include "optim/expect_error.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(packed_tensor)

struct Row {
  at::ScalarType type;
  double relative_error;  // of normal values: half a unit in the last place
  double smallest;        // of the range that is not subnormal, as a share of the largest
};
const Row kRows[] = {{at::kFloat, 0, 0},
                     {at::kBFloat16, 0x1p-8, 0},
                     {at::kHalf, 0x1p-11, 6.2e-5 / 32752},
                     {at::kFloat8_e4m3fn, 0x1p-4, 0x1p-6 / 448}};

BOOST_AUTO_TEST_CASE(packed_values_are_the_nearest_of_their_type) {
  for (const Row& row : kRows) {
    for (const double magnitude : {1e-9, 1.0, 1e6}) {
      const at::Tensor value = random_tensor({4000}, 3, magnitude);
      const at::Tensor back = optim::unpack(optim::pack(value, row.type));
      const std::vector<float> x = values_of(value), y = values_of(back);
      double largest = 0;
      for (const float element : x) largest = std::max(largest, std::abs(double{element}));
      for (size_t i = 0; i < x.size(); ++i) {
        const double size = std::max(std::abs(double{x[i]}), row.smallest * largest);
        BOOST_TEST(std::abs(double{x[i]} - y[i]) <= size * row.relative_error * (1 + 1e-5));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_scale_brings_the_largest_magnitude_to_the_documented_value) {
  const at::Tensor value = random_tensor({100}, 1, 0).add_(-7);
  const auto half = optim::pack(value, at::kHalf);
  BOOST_TEST(values_of(half.scale)[0] == 7.0F / 32752.0F);
  BOOST_TEST(values_of(half.data.to(at::kFloat))[0] == -32752.0F);
  const auto eight_bits = optim::pack(value, at::kFloat8_e4m3fn);
  BOOST_TEST(values_of(eight_bits.scale)[0] == 7.0F / 448.0F);
  BOOST_TEST(values_of(eight_bits.data.to(at::kFloat))[0] == -448.0F);
  BOOST_TEST(!optim::pack(value, at::kBFloat16).scale.defined());
}

BOOST_AUTO_TEST_CASE(what_was_packed_once_is_packed_again_to_the_same_values) {
  for (const Row& row : kRows) {
    const auto once = optim::pack(random_tensor({1000}, 5), row.type);
    const auto twice = optim::pack(optim::unpack(once), row.type);
    BOOST_TEST(same_bits(twice.data.to(at::kFloat), once.data.to(at::kFloat)));
  }
}

BOOST_AUTO_TEST_CASE(zeros_stay_zero_and_what_is_not_finite_does_not_become_finite) {
  for (const Row& row : kRows) {
    const at::Tensor zeros = random_tensor({8}, 1, 0);
    BOOST_TEST(same_bits(optim::unpack(optim::pack(zeros, row.type)), zeros));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const at::Tensor value = random_tensor({8}, 1);
      value.mutable_data_ptr<float>()[3] = bad;
      BOOST_TEST(!std::isfinite(values_of(optim::unpack(optim::pack(value, row.type)))[3]));
    }
  }
}

// A scale of which fp32 has no inverse.
BOOST_AUTO_TEST_CASE(magnitudes_too_small_to_scale_become_zero) {
  for (const auto type : {at::kHalf, at::kFloat8_e4m3fn}) {
    at::Tensor value = random_tensor({2}, 1, 0);
    value.mutable_data_ptr<float>()[0] = 1e-40F;
    const auto packed = optim::pack(value, type);
    BOOST_TEST(values_of(packed.scale)[0] == 0);
    for (const float found : values_of(optim::unpack(packed))) BOOST_TEST(found == 0);
  }
}

BOOST_AUTO_TEST_CASE(other_types_are_refused) {
  expect_error(ckpt::ErrorCode::InvalidArgument, "",
               [] { optim::pack(random_tensor({1}, 1), at::kChar); });
}

// 16 bits of the model's parameter and 16 of a remainder are the 32 of the master.
BOOST_AUTO_TEST_CASE(a_master_is_its_parameter_and_a_remainder_bit_for_bit) {
  at::Tensor master = random_tensor({20000}, 9);
  auto* const values = master.mutable_data_ptr<float>();
  for (uint32_t i = 0; i < 16384; ++i) {  // every kind of lower half, at several exponents
    values[i] = std::bit_cast<float>((i % 2 << 31U) | ((i % 250) << 23U) | (i * 5U % 0x800000U));
  }
  const at::Tensor high = at::empty(master.sizes(), at::kBFloat16);
  const at::Tensor low = at::empty(master.sizes(), at::kShort);
  optim::split_remainder(master, {high, low});
  BOOST_TEST(same_bits(optim::join_remainder({high, low}), master));
  const at::Tensor nearest = master.to(at::kBFloat16);
  const std::vector<float> ours = values_of(high.to(at::kFloat));
  const std::vector<float> theirs = values_of(nearest.to(at::kFloat));
  for (size_t i = 0; i < ours.size(); ++i) {
    const bool is_tie = (std::bit_cast<uint32_t>(values[i]) & 0xFFFFU) == 0x8000U;
    BOOST_TEST((is_tie || ours[i] == theirs[i]));
  }
}

BOOST_AUTO_TEST_SUITE_END()
