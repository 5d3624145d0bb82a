#include <ATen/ops/cat.h>
#include <ATen/ops/lerp.h>
#include <optim/update_rule.h>

#include <cmath>

#include "optim/expect_error.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(muon)

using optim::MuonScaleMode;

optim::MuonRule exact_rule() {
  optim::MuonRule rule;
  rule.newton_schulz.precision = optim::MatmulPrecision::Highest;
  return rule;
}

optim::ParamInfo info_of(bool is_qkv = false) {
  optim::ParamInfo info = {.name = "w"};
  info.attributes.is_qkv = is_qkv;
  return info;
}

BOOST_AUTO_TEST_CASE(the_scale_follows_the_mode) {
  BOOST_TEST(optim::muon_scale(MuonScaleMode::Spectral, 4, 9) == 3.0);
  BOOST_TEST(optim::muon_scale(MuonScaleMode::Spectral, 16, 9) == 4.0);
  BOOST_TEST(optim::muon_scale(MuonScaleMode::UnitRmsNorm, 4, 16) == 0.5);
  BOOST_TEST(optim::muon_scale(MuonScaleMode::ShapeScaling, 4, 16) == 1.0);
  BOOST_TEST(optim::muon_scale(MuonScaleMode::ShapeScaling, 16, 4) == 2.0);
}

BOOST_AUTO_TEST_CASE(the_update_is_the_scaled_orthogonal_momentum) {
  optim::MuonRule rule = exact_rule();
  rule.nesterov = true;
  rule.extra_scale_factor = 0.2;
  const optim::ParamInfo info = info_of();
  const at::Tensor param = random_tensor({6, 10}, 1);
  const at::Tensor grad = random_tensor({6, 10}, 2);
  at::Tensor momentum = random_tensor({6, 10}, 3);
  optim::ParamState state = {{"momentum_buffer", momentum.clone()}};
  at::Tensor expected = param.clone();
  optim::make_rule(rule)->update({&info, param, grad, &state}, {.lr = 0.01, .weight_decay = 0.1});

  momentum.lerp_(grad, 1 - 0.95);
  const at::Tensor direction = at::lerp(grad, momentum, 0.95);
  expected.add_(expected, -0.1 * 0.01);
  expected.add_(optim::newton_schulz(direction, rule.newton_schulz).mul_(std::sqrt(10.0)).mul_(0.2),
                -0.01);
  BOOST_TEST(same_bits(state.at("momentum_buffer"), momentum));
  BOOST_TEST(same_bits(param, expected));
}

// Rows of a fused qkv weight: per group 4 of the query, 2 of the key, 2 of the value.
BOOST_AUTO_TEST_CASE(query_key_and_value_are_orthogonalised_apart) {
  optim::MuonRule rule = exact_rule();
  rule.qkv_split = optim::QkvSplit{4, 2, 2};
  const at::Tensor grad = random_tensor({24, 10}, 5);
  const auto step = [&](const optim::MuonRule& used, bool is_qkv) {
    const optim::ParamInfo info = info_of(is_qkv);
    const at::Tensor param = random_tensor({24, 10}, 4, 0);
    optim::ParamState state;
    optim::make_rule(used)->update({&info, param, grad, &state}, {.lr = 1});
    return param;
  };
  const auto rows = [&](std::initializer_list<int64_t> first, int64_t count) {
    std::vector<at::Tensor> parts;
    for (const int64_t row : first) parts.push_back(grad.narrow(0, row, count));
    return at::cat(parts).mul_(1 - 0.95);
  };
  const at::Tensor ours = step(rule, true);
  const auto expect_part = [&](std::initializer_list<int64_t> first, int64_t count) {
    const at::Tensor part =
        optim::newton_schulz(rows(first, count), rule.newton_schulz)
            .mul_(std::sqrt(static_cast<double>(std::max<int64_t>(3 * count, 10))))
            .neg();
    int64_t at = 0;
    for (const int64_t row : first) {
      BOOST_TEST(largest_difference(ours.narrow(0, row, count), part.narrow(0, at, count)) < 1e-6);
      at += count;
    }
  };
  expect_part({0, 8, 16}, 4);
  expect_part({4, 12, 20}, 2);
  expect_part({6, 14, 22}, 2);
  BOOST_TEST(same_bits(step(rule, false), step(exact_rule(), true)));  // others are not split
}

BOOST_AUTO_TEST_CASE(rows_that_are_no_whole_number_of_groups_are_refused) {
  optim::MuonRule rule = exact_rule();
  rule.qkv_split = optim::QkvSplit{4, 2, 2};
  const optim::ParamInfo info = info_of(true);
  optim::ParamState state;
  expect_error(ckpt::ErrorCode::InvalidArgument, "w", [&] {
    optim::make_rule(rule)->update(
        {&info, random_tensor({20, 4}, 1), random_tensor({20, 4}, 2), &state}, {});
  });
  expect_error(ckpt::ErrorCode::InvalidArgument, "w", [&] {
    optim::make_rule(rule)->update({&info, random_tensor({8}, 1), random_tensor({8}, 2), &state},
                                   {});
  });
  using Split = optim::QkvSplit;
  for (const Split& split : {Split{-1, 2, 3}, Split{4, 0, 2}, Split{4, 2, INT64_MAX}}) {
    rule.qkv_split = split;
    expect_error(ckpt::ErrorCode::InvalidArgument, "muon_split_qkv",
                 [&] { optim::make_rule(rule); });
  }
}

// p before the update and g: by hand, with momentum 0 and a learning rate that hides the update.
BOOST_AUTO_TEST_CASE(each_decay_method_does_what_its_formula_says) {
  using optim::WeightDecayMethod;
  struct Row {
    WeightDecayMethod method;
    double param;  // of 1, with lr 0.5 and wd 0.25
    double grad;   // of 0
  };
  const Row rows[] = {{WeightDecayMethod::Decoupled, 1 - 0.5 * 0.25, 0},
                      {WeightDecayMethod::Independent, 1 - 0.25, 0},
                      {WeightDecayMethod::L2, 1, 0.25},
                      {WeightDecayMethod::Palm, 1 - 0.25 * 0.25, 0}};
  for (const Row& row : rows) {
    optim::MuonRule rule = exact_rule();
    rule.weight_decay_method = row.method;
    rule.extra_scale_factor = 0;  // only decay moves the parameter
    const optim::ParamInfo info = info_of();
    const at::Tensor param = random_tensor({2, 2}, 1, 0).add_(1);
    const at::Tensor grad = random_tensor({2, 2}, 1, 0);
    optim::ParamState state;
    optim::make_rule(rule)->update({&info, param, grad, &state}, {.lr = 0.5, .weight_decay = 0.25});
    BOOST_TEST(values_of(param)[3] == static_cast<float>(row.param));
    BOOST_TEST(values_of(grad)[3] == static_cast<float>(row.grad));
  }
}

BOOST_AUTO_TEST_CASE(optimizers_that_are_not_built_are_refused_by_name) {
  optim::ParamGroup group;
  group.updated_by = "rekls";
  expect_error(ckpt::ErrorCode::Unsupported, "optimizer",
               [&] { optim::rule_of_group(group, {}, std::nullopt); });
}

BOOST_AUTO_TEST_SUITE_END()
