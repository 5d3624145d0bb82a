#include <optim/update_rule.h>

#include <cmath>

#include "optim/step/tensors.h"

// Every rule once more, in plain loops that read like its formula. Adam's is in adam_test.cc.
BOOST_AUTO_TEST_SUITE(rules_twice)

using Floats = std::vector<float>;

struct Twice {
  at::Tensor param;
  optim::ParamState state;
  Floats expected;
  Floats momentum;
};

Twice start(const std::vector<int64_t>& shape) {
  Twice twice;
  twice.param = random_tensor(shape, 11);
  twice.expected = values_of(twice.param);
  twice.momentum.assign(twice.expected.size(), 0);
  return twice;
}

// Four steps of the library's rule, each followed by `again`, the same in plain loops.
template <class Again>
void compare(const optim::RuleConfig& config, Twice& twice, Again&& again) {
  const auto rule = optim::make_rule(config);
  const optim::ParamInfo info = {.name = "p"};
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor grad =
        random_tensor(twice.param.sizes().vec(), static_cast<uint64_t>(step), 0.1);
    Floats g = values_of(grad);
    rule->update({&info, twice.param, grad, &twice.state}, {.lr = 0.01, .weight_decay = 0.1});
    again(g);
    const Floats ours = values_of(twice.param);
    for (size_t i = 0; i < ours.size(); ++i)
      BOOST_TEST(std::abs(ours[i] - twice.expected[i]) < 3e-7);
  }
}

BOOST_AUTO_TEST_CASE(sgd_follows_its_formula) {
  for (const double momentum : {0.0, 0.9}) {
    Twice twice = start({33, 7});
    compare(optim::SgdRule{momentum}, twice, [&](Floats& g) {
      for (size_t i = 0; i < g.size(); ++i) {
        float& p = twice.expected[i];
        float& b = twice.momentum[i];
        g[i] += 0.1F * p;
        b = static_cast<float>(momentum) * b + g[i];
        p -= 0.01F * b;
      }
    });
    BOOST_TEST(twice.state.size() == (momentum == 0 ? 0U : 1U));
  }
}

BOOST_AUTO_TEST_CASE(lion_follows_its_formula) {
  Twice twice = start({33, 7});
  compare(optim::LionRule{0.95, 0.98}, twice, [&](const Floats& g) {
    for (size_t i = 0; i < g.size(); ++i) {
      float& p = twice.expected[i];
      float& m = twice.momentum[i];
      p -= 0.01F * 0.1F * p;
      const float u = m + (1 - 0.95F) * (g[i] - m);
      p -= 0.01F * static_cast<float>((u > 0) - (u < 0));
      m += (1 - 0.98F) * (g[i] - m);
    }
  });
}

BOOST_AUTO_TEST_CASE(lion_does_not_move_where_gradient_and_momentum_are_zero) {
  const optim::ParamInfo info = {.name = "p"};
  const at::Tensor param = random_tensor({9}, 1);
  const at::Tensor before = param.clone();
  optim::ParamState state;
  optim::make_rule(optim::LionRule{})
      ->update({&info, param, random_tensor({9}, 1, 0), &state}, {.lr = 0.1});
  BOOST_TEST(same_bits(param, before));
}

// A product of row-major matrices, a: rows x inner, b: inner x columns.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                            size_t rows) {
  const size_t inner = a.size() / rows, columns = b.size() / inner;
  std::vector<double> c(rows * columns, 0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < columns; ++j)
        c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
    }
  }
  return c;
}

std::vector<double> transposed(const std::vector<double>& a, size_t rows) {
  const size_t columns = a.size() / rows;
  std::vector<double> t(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  }
  return t;
}

// Newton-Schulz in fp64, for matrices that are not tall.
std::vector<double> orthogonalised(std::vector<double> x, size_t rows) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares);
  for (int64_t i = 0; i < 5; ++i) {
    const auto [a, b, c] = optim::newton_schulz_step(optim::NsCoefficients::Quintic, i);
    const std::vector<double> gram = product(x, transposed(x, rows), rows);
    std::vector<double> polynomial = product(gram, gram, rows);
    for (size_t j = 0; j < gram.size(); ++j) polynomial[j] = b * gram[j] + c * polynomial[j];
    const std::vector<double> turned = product(polynomial, x, rows);
    for (size_t j = 0; j < x.size(); ++j) x[j] = a * x[j] + turned[j];
  }
  return x;
}

BOOST_AUTO_TEST_CASE(muon_follows_its_formula) {
  optim::MuonRule rule;
  rule.nesterov = true;
  rule.newton_schulz.precision = optim::MatmulPrecision::Highest;
  Twice twice = start({6, 10});
  compare(rule, twice, [&](const Floats& g) {
    std::vector<double> direction;
    for (size_t i = 0; i < g.size(); ++i) {
      twice.expected[i] -= 0.01F * 0.1F * twice.expected[i];
      twice.momentum[i] += 0.05F * (g[i] - twice.momentum[i]);
      direction.push_back(g[i] + 0.95F * (twice.momentum[i] - g[i]));
    }
    const std::vector<double> update = orthogonalised(direction, 6);
    for (size_t i = 0; i < g.size(); ++i) {
      twice.expected[i] -= static_cast<float>(0.01 * std::sqrt(10.0) * update[i]);
    }
  });
}

// Clipping that is folded into the update is clipping before it; a rounded copy is the rounding.
BOOST_AUTO_TEST_CASE(a_grad_scale_and_a_rounded_copy_are_what_they_say) {
  optim::MuonRule muon;
  muon.newton_schulz.precision = optim::MatmulPrecision::Highest;
  const optim::ParamInfo info = {.name = "p"};
  for (const optim::RuleConfig& config : std::vector<optim::RuleConfig>{
           optim::AdamRule{}, optim::AdamRule{.decoupled_weight_decay = false},
           optim::AdamRule{.arithmetic = optim::AdamArithmetic::FusedAdam},
           optim::AdamRule{.arithmetic = optim::AdamArithmetic::TransformerEngine},
           optim::AdamRule{.arithmetic = optim::AdamArithmetic::Fused}, optim::SgdRule{},
           optim::LionRule{}, muon}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor grad = random_tensor({150, 130}, 2).to(type);
      const at::Tensor a = random_tensor({150, 130}, 1), b = a.clone();
      const at::Tensor rounded = at::empty({150, 130}, at::kBFloat16);
      optim::ParamState state_a, state_b;
      const auto rule = optim::make_rule(config);
      rule->update({&info, a, grad, &state_a, rounded},
                   {.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.37});
      rule->update({&info, b, grad.to(at::kFloat, false, true).mul_(0.37), &state_b},
                   {.lr = 0.01, .weight_decay = 0.1});
      BOOST_TEST(same_bits(a, b));
      BOOST_TEST(same_bits(rounded, a.to(at::kBFloat16)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
