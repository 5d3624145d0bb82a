// Differences by module, and the worst of them first.
#include <training/diff_summary.h>

#include <boost/test/unit_test.hpp>

namespace {

using ckpt::DifferenceKind;

ckpt::TensorEntry tensor(std::string key) {
  ckpt::TensorEntry entry;
  entry.key = std::move(key);
  entry.shape = {4};
  return entry;
}

// The norm of A is 1.
ckpt::TensorDifference differs(std::string key, double max_abs, double norm) {
  ckpt::TensorDifference difference;
  difference.key = std::move(key);
  auto& value = difference.value.emplace();
  value.element_count = 4;
  value.different_count = 1;
  value.max_abs = max_abs;
  value.norm = norm;
  value.norm_a = 1;
  value.max_ulp_distance = max_abs * 8;
  return difference;
}

ckpt::TensorDifference is_missing(std::string key) {
  ckpt::TensorDifference difference;
  difference.kind = DifferenceKind::OnlyInA;
  difference.key = std::move(key);
  return difference;
}

const char* const kKeys[] = {"l.0.w", "l.0.b", "l.1.w", "l.1.b", "norm.w"};

ckpt::Inventory all_keys() {
  ckpt::Inventory inventory;
  for (const char* key : kKeys) inventory.tensors.push_back(tensor(key));
  return inventory;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(diff_summary)

BOOST_AUTO_TEST_CASE(modules_that_differ_are_told_the_worst_first) {
  const ckpt::Inventory both = all_keys();
  ckpt::Differences differences;
  differences.tensors = {differs("l.0.b", 1, 0.25), differs("l.0.w", 0.5, 0.5),
                         is_missing("l.1.w")};
  const auto summary = optim::summarize({differences, both, both});
  BOOST_TEST(summary.module_count == 3u);
  BOOST_REQUIRE(summary.modules.size() == 2u);

  const auto& missing = summary.modules[0];
  BOOST_TEST(missing.module == "l.1");
  BOOST_TEST(missing.structural_count == 1u);
  BOOST_TEST(missing.value_count == 1u);  // of l.1.b alone
  BOOST_TEST(missing.worst == "l.1.w");

  const auto& changed = summary.modules[1];
  BOOST_TEST(changed.module == "l.0");
  BOOST_TEST(changed.compared_count == 2u);
  BOOST_TEST(changed.different_count == 2u);
  BOOST_TEST(changed.max_abs == 1);
  BOOST_TEST(changed.relative_norm == 0.5);
  BOOST_TEST(*changed.max_ulp_distance == 8);
  BOOST_TEST(changed.worst == "l.0.w");
}

BOOST_AUTO_TEST_CASE(nan_is_worse_than_any_number) {
  auto number = differs("a", 1e30, 1e30), nan = differs("b", 0, 0);
  nan.value->nonfinite_count = 1;
  std::vector tensors = {differs("c", 1, 1), number, nan, is_missing("d")};
  optim::sort_worst_first(tensors);
  std::string order;
  for (const auto& each : tensors) order += each.key;
  BOOST_TEST(order == "dbac");
}

BOOST_AUTO_TEST_CASE(a_weight_is_told_before_states_and_then_the_largest_norm) {
  std::vector tensors = {differs("optimizer.state.exp_avg.l.0.w", 9, 9), differs("l.1.w", 9, 1e-6),
                         differs("l.0.w", 1e-6, 1e-5), is_missing("l.1.b")};
  std::string order;
  optim::sort_worst_first(tensors);
  for (const auto& each : tensors) order += each.key + " ";
  BOOST_TEST(order == "l.1.b l.0.w l.1.w optimizer.state.exp_avg.l.0.w ");
  const ckpt::Inventory both = all_keys();
  ckpt::Differences differences;
  differences.tensors = {tensors[1], tensors[3]};
  const auto summary = optim::summarize({differences, both, both});
  BOOST_REQUIRE(summary.modules.size() == 1u);
  BOOST_TEST(summary.modules[0].relative_norm == 1e-5);
  BOOST_TEST(summary.modules[0].weight_count == 1u);
  BOOST_TEST(summary.modules[0].worst == "l.0.w");
}

BOOST_AUTO_TEST_CASE(without_values_none_were_compared) {
  const ckpt::Inventory both = all_keys();
  ckpt::Differences differences;
  differences.tensors = {is_missing("norm.w")};
  const auto summary = optim::summarize({differences, both, both, true});
  BOOST_REQUIRE(summary.modules.size() == 1u);
  BOOST_TEST(summary.modules[0].value_count == 0u);
  BOOST_TEST(!summary.modules[0].max_ulp_distance);
}

BOOST_AUTO_TEST_SUITE_END()
