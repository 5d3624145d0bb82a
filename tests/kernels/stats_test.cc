#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/random_slot.h"
#include "kernels/stats_twin.h"

namespace {

using namespace kernels;

constexpr TensorTypes types_with(ElementType grad) {
  return {grad, ElementType::F32, {ElementType::F32, ElementType::F32}, ElementType::None};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gradient_statistics)

BOOST_AUTO_TEST_CASE(twin_sums_squares_and_counts_zeros) {
  for (const ElementType type : {ElementType::F32, ElementType::BF16, ElementType::F16}) {
    for (const int64_t count : {1, 255, 16384, 16385, 100003}) {
      SlotMemory memory = random_slot(types_with(type), count, 1);
      const TensorStats found = stats_twin(memory.slot(types_with(type)), type, 0.25F);
      double squares = 0, zeros = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double value =
            0.25 * decode(type, stored_bits(memory.tensors[SlotMemory::Grad].data(), i, type));
        squares += value * value;
        zeros += value == 0 ? 1 : 0;
      }
      BOOST_TEST(found.square_sum == squares, boost::test_tools::tolerance(1e-12));
      BOOST_TEST(found.zero_count == zeros);
    }
  }
}

BOOST_AUTO_TEST_CASE(clips_only_where_the_norm_is_too_large) {
  StepControl control = {};
  control.max_norm = 1;
  control_twin(control, {{9, 2}, {16, 3}});
  BOOST_TEST(control.grad_norm == 5);
  BOOST_TEST(control.zero_count == 5);
  BOOST_TEST(control.clip == static_cast<float>(1 / (5 + 1e-6)));
  control_twin(control, {{0.25, 0}});
  BOOST_TEST(control.clip == 1);
  control.max_norm = 0;
  control_twin(control, {{1e12, 0}});
  BOOST_TEST(control.clip == 1);
}

BOOST_AUTO_TEST_CASE(infinite_gradients_skip_only_under_loss_scaling) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    SlotMemory memory = random_slot(types_with(ElementType::F32), 20000, 1);
    store_bits(memory.tensors[SlotMemory::Grad].data(), 17000, ElementType::F32,
               bits_of_float(bad));
    const TensorStats stats =
        stats_twin(memory.slot(types_with(ElementType::F32)), ElementType::F32, 1);
    StepControl control = {};
    control_twin(control, {stats});
    BOOST_TEST(control.is_finite == 0U);
    BOOST_TEST(control.skip == 0U);
    control.check_finite = 1;
    control_twin(control, {stats});
    BOOST_TEST(control.skip == 1U);
  }
}

BOOST_AUTO_TEST_CASE(largest_finite_gradients_do_not_overflow_the_sum) {
  StepControl control = {};
  control.check_finite = 1;
  ElementSums sums = {0, 0};
  for (int i = 0; i < 1000; ++i) add_element(sums, std::numeric_limits<float>::max());
  control_twin(control, {stats_of(sums)});
  BOOST_TEST(control.is_finite == 1U);
  BOOST_TEST(control.skip == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
