#include <optim/emerging_rules.h>
#include <optim/newton_schulz.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>

#include <algorithm>
#include <functional>

#include "optim/expect_error.h"
#include "optim/step/plain_matrix.h"

using optim::AdaptiveMuonRule;
using optim::EmergingOptimizers;
using optim::Moment2Method;

namespace {

Matrix plain_orthogonal(const Matrix& input, const optim::NewtonSchulzOptions& options) {
  const bool is_tall = input.rows > input.columns;
  Matrix x = is_tall ? transposed(input) : input;
  x = scaled(x, 1 / std::max(frobenius(x), 1e-7));
  for (int64_t i = 0; i < options.steps; ++i) {
    const optim::NewtonSchulzStep step = optim::newton_schulz_step(options.coefficients, i);
    const Matrix gram = x * transposed(x);
    const Matrix polynomial =
        each(scaled(gram, step.b), scaled(gram * gram, step.c), std::plus<>());
    x = each(scaled(x, step.a), polynomial * x, std::plus<>());
  }
  return is_tall ? transposed(x) : x;
}

struct Plain {
  Matrix param, momentum;
  std::vector<double> moment2;
};

// The update before the scale: what the three methods differ in.
Matrix plain_normalized(const Matrix& o, const Matrix& direction, const Matrix& grad, Plain& p,
                        const AdaptiveMuonRule& rule) {
  const double weight = 1 - rule.beta2;
  const auto average = [&](double& v, double value) { v += weight * (value - v); };
  Matrix update = o;
  if (rule.moment2_method == Moment2Method::Namo) {
    average(p.moment2[0], frobenius(grad) * frobenius(grad));
    return scaled(o, frobenius(direction) / (std::sqrt(p.moment2[0]) + rule.eps));
  }
  if (rule.moment2_method == Moment2Method::AdaMuon) {
    for (size_t i = 0; i < o.values.size(); ++i) {
      average(p.moment2[i], o.values[i] * o.values[i]);
      update.values[i] = o.values[i] / (std::sqrt(p.moment2[i]) + rule.eps);
    }
    return update;
  }
  const bool by_row = o.rows >= o.columns;
  const size_t lines = by_row ? o.rows : o.columns, length = by_row ? o.columns : o.rows;
  for (size_t line = 0; line < lines; ++line) {
    double squares = 0;
    const auto element = [&](Matrix& m, size_t i) -> double& {
      return by_row ? m(line, i) : m(i, line);
    };
    Matrix copy = o;
    for (size_t i = 0; i < length; ++i) squares += element(copy, i) * element(copy, i);
    average(p.moment2[line], squares / static_cast<double>(length));
    for (size_t i = 0; i < length; ++i) {
      element(update, i) /= std::sqrt(std::max(p.moment2[line], rule.eps));
    }
  }
  if (rule.era == EmergingOptimizers::V0_2) return update;
  return scaled(update, frobenius(o) / std::max(frobenius(update), rule.eps));
}

void plain_step(Plain& p, const Matrix& grad, const AdaptiveMuonRule& rule,
                const optim::StepContext& c) {
  p.param = scaled(p.param, 1 - c.lr * c.weight_decay);
  p.momentum = averaged(p.momentum, grad, 1 - rule.muon.momentum);
  const Matrix direction =
      rule.muon.nesterov ? averaged(grad, p.momentum, rule.muon.momentum) : p.momentum;
  const double scale = optim::muon_scale(rule.muon.scale_mode, static_cast<int64_t>(grad.rows),
                                         static_cast<int64_t>(grad.columns)) *
                       rule.muon.extra_scale_factor;
  Matrix o = plain_orthogonal(direction, rule.muon.newton_schulz);
  const bool before = rule.era == EmergingOptimizers::V0_2 || rule.scales_twice;
  if (before) o = scaled(o, scale);
  Matrix update = plain_normalized(o, direction, grad, p, rule);
  if (rule.era == EmergingOptimizers::V0_3) update = scaled(update, scale);
  p.param = each(p.param, update, [&](double x, double u) { return x - c.lr * u; });
}

AdaptiveMuonRule random_rule(Numbers& numbers) {
  const auto coin = [&] { return numbers.below(2) == 0; };
  AdaptiveMuonRule rule;
  rule.muon.newton_schulz.precision = optim::MatmulPrecision::Highest;
  rule.muon.nesterov = coin();
  rule.muon.momentum = 0.8;
  rule.muon.extra_scale_factor = coin() ? 1 : 0.2;
  rule.muon.scale_mode = static_cast<optim::MuonScaleMode>(numbers.below(3));
  rule.moment2_method = static_cast<Moment2Method>(numbers.below(3));
  rule.eps = 1e-3;
  const bool is_old = coin() && rule.moment2_method != Moment2Method::Namo;
  rule.era = is_old ? EmergingOptimizers::V0_2 : EmergingOptimizers::V0_3;
  rule.scales_twice = !is_old && coin();
  return rule;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adaptive_muon)

BOOST_AUTO_TEST_CASE(two_implementations_agree_for_any_shape_and_options) {
  Numbers numbers(3);
  for (uint64_t trial = 0; trial < 150; ++trial) {
    const auto rows = static_cast<int64_t>(1 + numbers.below(9));
    const auto columns = static_cast<int64_t>(1 + numbers.below(9));
    const AdaptiveMuonRule rule = random_rule(numbers);
    at::Tensor param = random_tensor({rows, columns}, 100 + trial);
    optim::ParamState state;
    const auto muon = optim::make_rule(rule);
    muon->init_state(param, state);
    Plain plain = {Matrix(param), Matrix(state.at("momentum_buffer")),
                   std::vector<double>(static_cast<size_t>(state.at("moment2_buffer").numel()), 0)};
    const optim::ParamInfo info{.name = "w", .shape = {rows, columns}};
    for (int64_t step = 1; step < 4; ++step) {
      const at::Tensor grad =
          random_tensor({rows, columns}, trial * 7 + static_cast<uint64_t>(step));
      const optim::StepContext context = {.lr = 0.1, .weight_decay = 0.05, .step = step};
      plain_step(plain, Matrix(grad), rule, context);
      muon->update({&info, param, grad.clone(), &state}, context);
      BOOST_TEST_CONTEXT("trial " << trial << ", " << rows << " x " << columns << ", step "
                                  << step) {
        BOOST_TEST(relative_difference(param, plain.param) < 2e-4);
        BOOST_TEST(relative_difference(state.at("momentum_buffer"), plain.momentum) < 1e-5);
        Matrix moment2(plain.moment2.size(), 1);
        moment2.values = plain.moment2;
        BOOST_TEST(relative_difference(state.at("moment2_buffer"), moment2) < 2e-4);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_second_moment_has_the_shape_of_its_method) {
  const auto shape_of = [](Moment2Method method, std::vector<int64_t> shape) {
    AdaptiveMuonRule rule;
    rule.moment2_method = method;
    return optim::states_of(rule, shape).at(1).shape;
  };
  using Shape = std::vector<int64_t>;
  BOOST_TEST((shape_of(Moment2Method::AdaMuon, {4, 3}) == Shape{4, 3}));
  BOOST_TEST((shape_of(Moment2Method::NorMuon, {4, 3}) == Shape{4, 1}));
  BOOST_TEST((shape_of(Moment2Method::NorMuon, {3, 3}) == Shape{3, 1}));
  BOOST_TEST((shape_of(Moment2Method::NorMuon, {3, 4}) == Shape{1, 4}));
  BOOST_TEST((shape_of(Moment2Method::Namo, {3, 4}) == Shape{1}));
}

BOOST_AUTO_TEST_CASE(what_a_release_does_not_have_is_refused_by_name) {
  const optim::ParamGroup group = {.updated_by = "adaptive_muon"};
  optim::OptimizerConfig config;
  config.adaptive_muon_moment2_method = Moment2Method::Namo;
  expect_error(ckpt::ErrorCode::Unsupported, "adaptive_muon_moment2_method", [&] {
    optim::rule_of_group(group, config, std::nullopt, EmergingOptimizers::V0_2);
  });
  AdaptiveMuonRule rule;
  rule.moment2_method = Moment2Method::Namo;
  rule.muon.weight_decay_method = optim::WeightDecayMethod::L2;
  expect_error(ckpt::ErrorCode::InvalidArgument, "adaptive_muon_moment2_method",
               [&] { optim::make_rule(rule); });
}

// Query, key and value are orthogonalised apart, the second moment is the whole weight's.
BOOST_AUTO_TEST_CASE(a_fused_qkv_weight_is_taken_apart_before_its_second_moment) {
  AdaptiveMuonRule rule;
  rule.muon.newton_schulz.precision = optim::MatmulPrecision::Highest;
  rule.moment2_method = Moment2Method::NorMuon;
  rule.muon.qkv_split = optim::QkvSplit{4, 2, 2};
  optim::ParamInfo info{.name = "qkv", .shape = {16, 6}};
  info.attributes.is_qkv = true;
  const at::Tensor start = random_tensor({16, 6}, 1);
  const auto step = [&](const AdaptiveMuonRule& used) {
    at::Tensor param = start.clone();
    optim::ParamState state;
    optim::make_rule(used)->update({&info, param, random_tensor({16, 6}, 2), &state}, {.lr = 1});
    return param;
  };
  const at::Tensor apart = step(rule);
  rule.muon.qkv_split.reset();
  BOOST_TEST(largest_difference(apart, step(rule)) > 1e-2);
}

BOOST_AUTO_TEST_SUITE_END()
