#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "optim/expect_error.h"
#include "optim/step/plain_matrix.h"

using optim::EmergingOptimizers;
using optim::SoapRule;

namespace {

// One parameter as the readable implementation keeps it.
struct Plain {
  Matrix param, m, v, left, right, ql, qr;
};

Plain plain_of(const at::Tensor& param, const optim::ParamState& state) {
  return {Matrix(param),          Matrix(state.at("exp_avg")), Matrix(state.at("exp_avg_sq")),
          Matrix(state.at("L")),  Matrix(state.at("R")),       Matrix(state.at("Q_L")),
          Matrix(state.at("Q_R"))};
}

Matrix rows_of(const Matrix& m, const std::vector<size_t>& order) {
  return transposed(columns_of(transposed(m), order));
}

// KL-Shampoo's weight of the other side.
Matrix inverse_of(const Matrix& factor, const Matrix& basis, double eps) {
  const std::vector<double> lambda = diagonal_in(factor, basis);
  Matrix scaled_basis = basis;
  for (size_t r = 0; r < basis.rows; ++r) {
    for (size_t c = 0; c < basis.columns; ++c) {
      scaled_basis(r, c) /= static_cast<double>(factor.rows) * std::max(lambda[c], eps);
    }
  }
  return scaled_basis * transposed(basis);
}

void plain_factors(Plain& p, const Matrix& g, const SoapRule& rule, double weight) {
  const Matrix gt = transposed(g);
  Matrix left = g * gt, right = gt * g;
  if (rule.use_kl_shampoo) {
    left = g * inverse_of(p.right, p.qr, rule.eps) * gt;
    right = gt * inverse_of(p.left, p.ql, rule.eps) * g;
  }
  p.left = averaged(p.left, left, weight);
  p.right = averaged(p.right, right, weight);
}

bool has_good_basis(const Matrix& factor, const Matrix& basis, double tolerance) {
  double squares = 0;
  for (const double value : diagonal_in(factor, basis)) squares += value * value;
  return tolerance * frobenius(factor) >= frobenius(factor) - std::sqrt(squares);
}

void plain_refresh(Plain& p, const SoapRule& rule, bool use_eigh) {
  const Matrix back = p.ql * p.m * transposed(p.qr);
  if (!use_eigh || rule.era == EmergingOptimizers::V0_3) {
    const auto by_left = descending(diagonal_in(p.left, p.ql));
    const auto by_right = descending(diagonal_in(p.right, p.qr));
    p.ql = columns_of(p.ql, by_left);
    p.qr = columns_of(p.qr, by_right);
    p.v = columns_of(rows_of(p.v, by_left), by_right);
  }
  if (use_eigh) {
    p.ql = eigenvectors(p.left);
    p.qr = eigenvectors(p.right);
  } else {
    for (int64_t i = 0; i < rule.power_iter_steps; ++i) {
      p.ql = orthonormal(p.left * p.ql);
      p.qr = orthonormal(p.right * p.qr);
    }
  }
  p.m = transposed(p.ql) * back * p.qr;
}

void plain_decay(Plain& p, Matrix& g, const SoapRule& rule, const optim::StepContext& c) {
  const auto shrink = [&](double by) { p.param = scaled(p.param, 1 - by); };
  switch (rule.weight_decay_method) {
    case optim::WeightDecayMethod::Decoupled: shrink(c.lr * c.weight_decay); break;
    case optim::WeightDecayMethod::Independent: shrink(c.weight_decay); break;
    case optim::WeightDecayMethod::Palm: shrink(c.lr * c.lr * c.weight_decay); break;
    case optim::WeightDecayMethod::L2:
      g = each(g, p.param, [&](double x, double w) { return x + c.weight_decay * w; });
      break;
  }
}

// One step, as the papers and emerging_optimizers' documentation describe it.
void plain_step(Plain& p, Matrix g, const SoapRule& rule, const optim::StepContext& c) {
  const auto t = static_cast<double>(c.step);
  const int64_t done = c.step - 1;
  const bool corrects = rule.correct_shampoo_beta_bias.value_or(rule.correct_bias);
  const double weight =
      (1 - rule.shampoo_beta) / (corrects ? 1 - std::pow(rule.shampoo_beta, t) : 1);
  plain_factors(p, g, rule, weight);
  const int64_t warmup = rule.adam_warmup_steps;
  const bool is_first = done == warmup;
  if (done >= warmup && done % optim::frequency_at(rule.precondition_frequency, done) == 0) {
    const bool is_good = rule.use_adaptive_criteria && !is_first &&
                         has_good_basis(p.left, p.ql, rule.adaptive_update_tolerance) &&
                         has_good_basis(p.right, p.qr, rule.adaptive_update_tolerance);
    if (!is_good) plain_refresh(p, rule, rule.use_eigh || is_first);
  }
  plain_decay(p, g, rule, c);
  const bool in_basis = done >= warmup;
  const Matrix inside = in_basis ? transposed(p.ql) * g * p.qr : g;
  p.m = averaged(p.m, inside, 1 - rule.beta1);
  p.v = averaged(p.v, each(inside, inside, std::multiplies<>()), 1 - rule.beta2);
  const auto correction = [&](double beta, double steps) {
    return rule.correct_bias ? 1 - std::pow(beta, steps) : 1.0;
  };
  Matrix first = scaled(p.m, 1 / correction(rule.beta1, t));
  if (rule.nesterov) {
    first = each(scaled(p.m, rule.beta1 / correction(rule.beta1, t + 1)),
                 scaled(inside, (1 - rule.beta1) / correction(rule.beta1, t)), std::plus<>());
  }
  const double second = correction(rule.beta2, t);
  Matrix update = each(first, p.v, [&](double x, double square) {
    return x / (std::sqrt(square / second) + rule.eps);
  });
  if (in_basis) update = p.ql * update * transposed(p.qr);
  if (rule.max_update_rms > 0) {
    const double rms = frobenius(update) / std::sqrt(static_cast<double>(update.values.size()));
    update = scaled(update, std::min(1.0, rule.max_update_rms / (rms + 1e-7)));
  }
  p.param = each(p.param, update, [&](double x, double u) { return x - c.lr * u; });
}

at::Tensor tensor_of(const Matrix& m) {
  at::Tensor tensor =
      random_tensor({static_cast<int64_t>(m.rows), static_cast<int64_t>(m.columns)}, 1);
  std::ranges::copy(m.values, tensor.mutable_data_ptr<float>());
  return tensor;
}

// Positive definite with eigenvalues far apart, so that bases are well determined.
at::Tensor spread_factor(int64_t size, uint64_t seed) {
  const Matrix basis = orthonormal(Matrix(random_tensor({size, size}, seed)));
  Matrix spread = identity(basis.rows);
  for (size_t i = 0; i < basis.rows; ++i) spread(i, i) = std::pow(2.5, -static_cast<double>(i)) * 4;
  const Matrix factor = basis * spread * transposed(basis);
  return tensor_of(averaged(factor, transposed(factor), 0.5));
}

// A state from which the next bases follow without a choice.
optim::ParamState spread_state(int64_t rows, int64_t columns, uint64_t seed) {
  optim::ParamState state;
  state["L"] = spread_factor(rows, seed);
  state["R"] = spread_factor(columns, seed + 1);
  state["Q_L"] = tensor_of(eigenvectors(Matrix(state["L"])));
  state["Q_R"] = tensor_of(eigenvectors(Matrix(state["R"])));
  state["exp_avg"] = random_tensor({rows, columns}, seed + 2, 0.3);
  state["exp_avg_sq"] = random_tensor({rows, columns}, seed + 3, 0.5).square();
  return state;
}

SoapRule random_rule(Numbers& numbers) {
  const auto coin = [&] { return numbers.below(2) == 0; };
  SoapRule rule;
  rule.eps = 1e-2;
  rule.shampoo_beta = 0.9;
  rule.nesterov = coin();
  rule.correct_bias = coin();
  if (coin()) rule.correct_shampoo_beta_bias = coin();
  rule.use_eigh = coin();
  rule.use_kl_shampoo = coin();
  rule.power_iter_steps = 1 + static_cast<int64_t>(numbers.below(3));
  rule.max_update_rms = coin() ? 0 : 0.2;
  rule.weight_decay_method = static_cast<optim::WeightDecayMethod>(numbers.below(4));
  if (coin()) return rule;
  rule.era = EmergingOptimizers::V0_2;
  if (rule.weight_decay_method == optim::WeightDecayMethod::Palm) rule.weight_decay_method = {};
  rule.precondition_frequency.frequency = 1 + static_cast<int64_t>(numbers.below(3));
  rule.adam_warmup_steps = static_cast<int64_t>(numbers.below(12));
  rule.use_adaptive_criteria = coin();
  rule.adaptive_update_tolerance = coin() ? 1e-7 : 0.5;
  return rule;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(soap)

BOOST_AUTO_TEST_CASE(two_implementations_agree_for_any_shape_and_options) {
  Numbers numbers(5);
  for (uint64_t trial = 0; trial < 120; ++trial) {
    const auto rows = static_cast<int64_t>(1 + numbers.below(6));
    const auto columns = static_cast<int64_t>(1 + numbers.below(6));
    const SoapRule rule = random_rule(numbers);
    at::Tensor param = random_tensor({rows, columns}, 100 + trial);
    optim::ParamState state = spread_state(rows, columns, 1000 + 10 * trial);
    Plain plain = plain_of(param, state);
    const auto soap = optim::make_rule(rule);
    const optim::ParamInfo info{.name = "w", .shape = {rows, columns}};
    for (int64_t step = 8; step < 11; ++step) {
      const at::Tensor grad =
          random_tensor({rows, columns}, trial * 7 + static_cast<uint64_t>(step));
      const optim::StepContext context = {.lr = 0.1, .weight_decay = 0.05, .step = step};
      plain_step(plain, Matrix(grad), rule, context);
      soap->update({&info, param, grad.clone(), &state}, context);
      BOOST_TEST_CONTEXT("trial " << trial << ", " << rows << " x " << columns << ", step "
                                  << step) {
        BOOST_TEST(relative_difference(param, plain.param) < 2e-4);
        BOOST_TEST(relative_difference(state.at("L"), plain.left) < 2e-5);
        BOOST_TEST(relative_difference(state.at("R"), plain.right) < 2e-5);
        BOOST_TEST(relative_difference(state.at("exp_avg_sq"), plain.v) < 2e-3);
      }
    }
  }
}

// From the first step on: both factors have full rank, and eps hides what is rounding.
BOOST_AUTO_TEST_CASE(two_implementations_agree_from_the_start_for_square_matrices) {
  for (uint64_t trial = 0; trial < 20; ++trial) {
    const auto size = static_cast<int64_t>(2 + trial % 4);
    SoapRule rule;
    rule.eps = 0.1;
    rule.use_eigh = trial % 2 == 0;
    at::Tensor param = random_tensor({size, size}, 100 + trial);
    optim::ParamState state;
    const auto soap = optim::make_rule(rule);
    soap->init_state(param, state);
    Plain plain = plain_of(param, state);
    const optim::ParamInfo info{.name = "w", .shape = {size, size}};
    const at::Tensor grad = random_tensor({size, size}, 7 + trial);
    plain_step(plain, Matrix(grad), rule, {.lr = 0.1, .step = 1});
    soap->update({&info, param, grad.clone(), &state}, {.lr = 0.1, .step = 1});
    BOOST_TEST(relative_difference(param, plain.param) < 1e-4);
  }
}

BOOST_AUTO_TEST_CASE(bases_stay_orthonormal_and_diagonalise_their_factors) {
  SoapRule rule;
  rule.use_eigh = true;
  at::Tensor param = random_tensor({12, 7}, 3);
  optim::ParamState state;
  const optim::ParamInfo info{.name = "w", .shape = {12, 7}};
  const auto soap = optim::make_rule(rule);
  for (int64_t step = 1; step < 6; ++step) {
    soap->update({&info, param, random_tensor({12, 7}, static_cast<uint64_t>(step)), &state},
                 {.lr = 0.1, .step = step});
    for (const auto& [factor, basis] : {std::pair("L", "Q_L"), std::pair("R", "Q_R")}) {
      const Matrix q(state.at(basis));
      const Matrix inside = transposed(q) * Matrix(state.at(factor)) * q;
      const Matrix one = transposed(q) * q;
      for (size_t r = 0; r < one.rows; ++r) {
        for (size_t c = 0; c < one.columns; ++c) {
          BOOST_TEST(std::abs(one(r, c) - (r == c ? 1 : 0)) < 1e-5);
          if (r != c) BOOST_TEST(std::abs(inside(r, c)) < 1e-4);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(settings_that_make_no_sense_are_refused_by_name) {
  struct Row {
    ckpt::ErrorCode code;
    const char* key;
    std::function<void(SoapRule&)> change;
  };
  const auto invalid = ckpt::ErrorCode::InvalidArgument, unsupported = ckpt::ErrorCode::Unsupported;
  const Row rows[] = {
      {invalid, "soap_precondition_frequency",
       [](auto& r) { r.precondition_frequency.frequency = 0; }},
      {invalid, "power_iter_steps", [](auto& r) { r.power_iter_steps = 0; }},
      {invalid, "max_update_rms", [](auto& r) { r.max_update_rms = -1; }},
      {invalid, "adam_warmup_steps", [](auto& r) { r.adam_warmup_steps = -1; }},
      {invalid, "schedule_dict",
       [](auto& r) { r.precondition_frequency.kind = optim::PreconditionSchedule::Kind::Steps; }},
      {unsupported, "soap_precondition_frequency",
       [](auto& r) { r.precondition_frequency.frequency = 2; }},
      {unsupported, "adam_warmup_steps", [](auto& r) { r.adam_warmup_steps = 1; }},
      {unsupported, "weight_decay_method",
       [](auto& r) {
         r.era = EmergingOptimizers::V0_2;
         r.weight_decay_method = optim::WeightDecayMethod::Palm;
       }},
      {unsupported, "use_adaptive_criteria", [](auto& r) { r.use_adaptive_criteria = true; }}};
  for (const Row& row : rows) {
    SoapRule rule;
    row.change(rule);
    expect_error(row.code, row.key, [&] { optim::make_rule(rule); });
  }
}

BOOST_AUTO_TEST_CASE(states_that_no_step_can_begin_from_are_refused_and_nothing_moves) {
  struct Row {
    const char* state;
    float value;
    int64_t index;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Row rows[] = {{"Q_L", nan, 2}, {"Q_R", inf, 0},     {"L", nan, 1},        {"L", -3, 0},
                      {"R", 90, 1},    {"exp_avg", nan, 3}, {"exp_avg_sq", -1, 2}};
  for (const Row& row : rows) {
    at::Tensor param = random_tensor({3, 4}, 3);
    const at::Tensor before = param.clone();
    optim::ParamState state = spread_state(3, 4, 9);
    state.at(row.state).mutable_data_ptr<float>()[row.index] = row.value;
    const optim::ParamState states_before = [&] {
      optim::ParamState copy;
      for (const auto& [name, tensor] : state) copy[name] = tensor.clone();
      return copy;
    }();
    const optim::ParamInfo info{.name = "w", .shape = {3, 4}};
    expect_error(ckpt::ErrorCode::InvalidArgument, std::string(row.state) + ".w", [&] {
      optim::make_rule(SoapRule())
          ->update({&info, param, random_tensor({3, 4}, 1), &state}, {.lr = 0.1, .step = 5});
    });
    BOOST_TEST(same_bits(param, before));
    for (const auto& [name, tensor] : state) BOOST_TEST(same_bits(tensor, states_before.at(name)));
  }
}

BOOST_AUTO_TEST_CASE(only_matrices_are_updated) {
  optim::ParamState state;
  const optim::ParamInfo info{.name = "b", .shape = {4}};
  expect_error(ckpt::ErrorCode::InvalidArgument, "b", [&] {
    optim::make_rule(SoapRule())
        ->update({&info, random_tensor({4}, 1), random_tensor({4}, 2), &state}, {});
  });
}

// By the formulas of emerging_optimizers 0.2's classes.
BOOST_AUTO_TEST_CASE(frequencies_are_those_of_the_schedules) {
  using Kind = optim::PreconditionSchedule::Kind;
  optim::PreconditionSchedule schedule;
  schedule.kind = Kind::Linear;
  schedule.max_frequency = 11;
  schedule.transition_steps = 100;
  schedule.start_step = 30;
  for (const auto& [step, frequency] :
       {std::pair(0, 1), {29, 1}, {30, 4}, {99, 10}, {100, 11}, {5000, 11}}) {
    BOOST_TEST(optim::frequency_at(schedule, step) == frequency);
  }
  schedule.kind = Kind::Cosine;
  schedule.start_step = 0;
  for (const auto& [step, frequency] : {std::pair(0, 1), {50, 6}, {99, 10}, {100, 1}}) {
    BOOST_TEST(optim::frequency_at(schedule, step) == frequency);
  }
  schedule.kind = Kind::Steps;
  schedule.steps = {{0, 1}, {1000, 5}, {5000, 10}};
  for (const auto& [step, frequency] : {std::pair(0, 1), {999, 1}, {1000, 5}, {90000, 10}}) {
    BOOST_TEST(optim::frequency_at(schedule, step) == frequency);
  }
}

BOOST_AUTO_TEST_SUITE_END()
