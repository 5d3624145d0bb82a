// The step of an optimizer, moved into its groups.
#include <boost/test/unit_test.hpp>

#include <ckpt/error.h>

#include "grid/whole_states.h"
#include "support/errors.h"

using optim::ChainedOptimizerState;
using optim::StepLayout;

namespace {

template <class Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

ChainedOptimizerState counted(ckpt::DType dtype, std::string bytes) {
  ChainedOptimizerState optimizer;
  optimizer.step_layout = StepLayout::PerParam;
  optimizer.step_dtype = dtype;
  optimizer.step_bytes = std::move(bytes);
  return optimizer;
}

// Of its only group.
ckpt::Value step_of(ckpt::ValueTree& tree, ChainedOptimizerState optimizer) {
  optimizer.groups = {tree.dict()};
  optim::put_steps_into_groups(tree, optimizer);
  BOOST_TEST((optimizer.step_layout == StepLayout::PerGroup));
  return tree.value(optimizer.groups[0]).at("step");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer_steps)

BOOST_AUTO_TEST_CASE(a_tensor_becomes_what_item_gives) {
  ckpt::ValueTree tree;
  BOOST_TEST(step_of(tree, counted(ckpt::DType::Float32, bytes_of(4.0F))).as_float() == 4.0);
  BOOST_TEST(step_of(tree, counted(ckpt::DType::Float64, bytes_of(5.0))).as_float() == 5.0);
  const ckpt::Value narrow = step_of(tree, counted(ckpt::DType::Int32, bytes_of(int32_t{6})));
  BOOST_TEST((narrow.is(ckpt::Kind::Int) && narrow.as_int() == 6));
  BOOST_TEST(step_of(tree, counted(ckpt::DType::Int64, bytes_of(int64_t{7}))).as_int() == 7);
}

BOOST_AUTO_TEST_CASE(a_number_stays_one) {
  ckpt::ValueTree tree;
  ChainedOptimizerState optimizer;
  optimizer.step_layout = StepLayout::PerParamNumber;
  optimizer.step_number = 9;
  BOOST_TEST(step_of(tree, optimizer).as_int() == 9);
}

BOOST_AUTO_TEST_CASE(a_step_in_groups_is_left_alone) {
  ckpt::ValueTree tree;
  ChainedOptimizerState optimizer;
  optimizer.step_layout = StepLayout::PerGroup;
  optimizer.groups = {tree.dict()};
  optim::put_steps_into_groups(tree, optimizer);
  BOOST_TEST(tree.value(optimizer.groups[0]).item_count() == 0u);
}

BOOST_AUTO_TEST_CASE(a_type_that_counts_nothing_is_refused) {
  ckpt::ValueTree tree;
  ChainedOptimizerState optimizer = counted(ckpt::DType::BFloat16, "ab");
  optimizer.groups = {tree.dict()};
  const auto error = test::error_of([&] { optim::put_steps_into_groups(tree, optimizer); });
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_SUITE_END()
