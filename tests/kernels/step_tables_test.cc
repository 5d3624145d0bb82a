#include "step_tables.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include <boost/test/unit_test.hpp>

namespace {

using namespace kernels;

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16;

alignas(16) float memory[64];

StepGroup group_of(RuleKind rule) {
  StepGroup group;
  group.settings.rule = rule;
  group.muon.scale = [](int64_t rows, int64_t columns) {
    return std::sqrt(static_cast<double>(std::max(rows, columns)));
  };
  return group;
}

StepParam matrix(uint32_t group, int64_t rows, int64_t columns) {
  StepParam param;
  param.slot.grad = param.slot.main = param.slot.state[0] = memory;
  param.slot.count = rows * columns;
  param.slot.group = group;
  param.slot.stats_index = kNoStats;
  param.types = {kBF16, kF32, {kF32, kNone}, kNone};
  param.rows = rows;
  param.columns = columns;
  return param;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(step_tables)

BOOST_AUTO_TEST_CASE(equal_types_and_rules_share_a_table) {
  StepPlan plan;
  plan.groups = {group_of(RuleKind::Lion), group_of(RuleKind::Lion), group_of(RuleKind::Sgd)};
  plan.params = {matrix(0, 1, 40000), matrix(1, 1, 5), matrix(2, 1, 5), matrix(0, 1, 0)};
  plan.params.push_back(matrix(0, 1, 7));
  plan.params.back().types.grad = kF32;
  BOOST_TEST(makes_sense(plan));
  const std::vector<ParamTable> tables = make_param_tables(plan);
  BOOST_REQUIRE_EQUAL(tables.size(), 3U);
  const ParamTable& first = tables[0];
  BOOST_TEST(first.slots.size() == 3U);
  BOOST_REQUIRE_EQUAL(first.chunks.size(), 4U);  // 40000 elements are three
  BOOST_TEST(first.chunks[2].index == 2U);
  BOOST_TEST(first.chunks[3].slot == 1U);
  BOOST_TEST(first.slots[1].first_chunk == 3U);
  BOOST_TEST(first.slots[0].is_aligned == 1U);
}

BOOST_AUTO_TEST_CASE(equal_shapes_are_orthogonalised_together_as_far_as_memory_allows) {
  StepPlan plan;
  plan.groups = {group_of(RuleKind::Muon)};
  for (int i = 0; i < 5; ++i) plan.params.push_back(matrix(0, 8, 4));
  plan.params.push_back(matrix(0, 4, 8));
  BOOST_TEST(make_muon_batches(plan).size() == 2U);
  plan.scratch_bytes_max = 2 * 2 * 2 * (8 * 4 + 4 * 4);  // bf16, two of each, two matrices
  const std::vector<MuonBatch> batches = make_muon_batches(plan);
  BOOST_REQUIRE_EQUAL(batches.size(), 4U);
  BOOST_TEST(batches[0].shape.batch == 2);
  BOOST_TEST(batches[2].shape.batch == 1);
  BOOST_TEST(batches[3].shape.columns == 8);
  plan.scratch_bytes_max = 0;
  BOOST_TEST(make_muon_batches(plan).size() == 6U);
}

BOOST_AUTO_TEST_CASE(groups_with_the_same_products_share_a_batch) {
  StepPlan plan;
  plan.groups = {group_of(RuleKind::Muon), group_of(RuleKind::Muon)};
  plan.groups[1].settings.lr = 7;
  plan.groups[1].settings.beta1 = 0.5;
  plan.groups[1].muon.extra_scale = 3;
  plan.params = {matrix(0, 8, 4), matrix(1, 8, 4), matrix(0, 8, 4)};
  const std::vector<MuonBatch> batches = make_muon_batches(plan);
  BOOST_REQUIRE_EQUAL(batches.size(), 1U);
  BOOST_TEST(batches[0].matrices[1].group == 1U);
  BOOST_TEST(batches[0].matrices[1].extra_scale == 3);
  BOOST_TEST(batches[0].matrices[2].group == 0U);
  plan.groups[1].muon.coefficients.push_back({1, 2, 3});
  BOOST_TEST(make_muon_batches(plan).size() == 2U);
  plan.groups[1].muon = plan.groups[0].muon;
  plan.groups[1].muon.tf32 = true;
  BOOST_TEST(make_muon_batches(plan).size() == 2U);
}

BOOST_AUTO_TEST_CASE(batches_are_dealt_to_two_lanes) {
  StepPlan plan;
  plan.groups = {group_of(RuleKind::Muon)};
  plan.params = {matrix(0, 8, 8), matrix(0, 4, 4), matrix(0, 4, 8), matrix(0, 16384, 16384)};
  const std::vector<MuonBatch> batches = make_muon_batches(plan);
  BOOST_REQUIRE_EQUAL(batches.size(), 4U);
  BOOST_TEST(batches[0].lane == 0U);
  BOOST_TEST(batches[1].lane == 1U);
  BOOST_TEST(batches[2].lane == 1U);
  BOOST_TEST(batches[3].lane == 0U);  // too much scratch memory, and fills the device
  plan.part_count = 2;
  plan.params[1].part = plan.params[2].part = 1;
  const std::vector<MuonBatch> parts = make_muon_batches(plan);
  BOOST_TEST(parts[1].lane == 0U);
  BOOST_TEST(parts[2].lane == 1U);
}

BOOST_AUTO_TEST_CASE(fused_weights_become_three_matrices_with_scales_of_their_own) {
  StepPlan plan;
  plan.groups = {group_of(RuleKind::Muon)};
  plan.params = {matrix(0, 24, 10)};
  plan.params[0].qkv_rows[0] = 8;
  plan.params[0].qkv_rows[1] = plan.params[0].qkv_rows[2] = 2;
  BOOST_TEST(makes_sense(plan));
  const std::vector<MuonBatch> batches = make_muon_batches(plan);
  BOOST_REQUIRE_EQUAL(batches.size(), 2U);  // query; key and value are of one shape
  BOOST_TEST(batches[0].shape.rows == 16);
  BOOST_TEST(batches[0].matrices[0].scale == 4);
  BOOST_TEST(batches[1].shape.batch == 2);
  BOOST_TEST(batches[1].matrices[1].first_row == 10U);
  BOOST_TEST(batches[1].matrices[1].is_aligned == 0U);  // ten columns
}

BOOST_AUTO_TEST_CASE(senseless_plans_are_refused) {
  StepPlan good;
  good.groups = {group_of(RuleKind::Muon)};
  good.params = {matrix(0, 6, 4)};
  BOOST_TEST(makes_sense(good));
  const std::vector<std::function<void(StepPlan&)>> mistakes = {
      [](StepPlan& plan) { plan.params[0].slot.group = 1; },
      [](StepPlan& plan) { plan.params[0].slot.stats_index = 0; },
      [](StepPlan& plan) { plan.params[0].slot.count = -1; },
      [](StepPlan& plan) { plan.params[0].rows = 7; },
      [](StepPlan& plan) { plan.params[0].rows = INT64_MAX; },
      [](StepPlan& plan) { plan.params[0].qkv_rows[0] = 4; },
      [](StepPlan& plan) { plan.params[0].types.state[0] = kNone; },
      [](StepPlan& plan) { plan.groups[0].muon.scale = nullptr; },
      [](StepPlan& plan) { plan.groups[0].muon.type = ElementType::F16; },
      [](StepPlan& plan) { plan.groups[0].settings.rule = RuleKind::Adam; }};
  for (size_t i = 0; i < mistakes.size(); ++i) {
    StepPlan plan = good;
    mistakes[i](plan);
    BOOST_TEST(!makes_sense(plan), "mistake " << i);
  }
}

BOOST_AUTO_TEST_CASE(a_machine_without_a_gpu_says_why_or_makes_a_step) {
  DeviceStatus status = 0;
  const auto step = device_api().make_step({}, status);
  if (const char* const problem = device_api().problem()) {
    BOOST_TEST(std::string(problem) != "");
    BOOST_TEST(!step);
    BOOST_TEST(status != 0);
    BOOST_TEST(std::string(device_api().status_text(status)) != "");
  } else {
    BOOST_TEST(static_cast<bool>(step));
  }
}

BOOST_AUTO_TEST_SUITE_END()
