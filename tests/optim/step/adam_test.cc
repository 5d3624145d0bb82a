#include <optim/update_rule.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "optim/step/tensors.h"

// AdamW and Adam against the formulas in plain C++, with the roundings of torch.optim on a CPU.
BOOST_AUTO_TEST_SUITE(adam)

struct UpdateTensors {
  at::Tensor param, grad, exp_avg, exp_avg_sq;
};

struct Scalars {
  std::vector<float> param, exp_avg, exp_avg_sq;
};

// LibTorch's, which is one unit off on some processors (docs/errata.md), and with coupled decay
// every later moment with it.
std::vector<float> roots_of(const std::vector<float>& values) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::ranges::copy(values, tensor.mutable_data_ptr<float>());
  return values_of(tensor.sqrt());
}

// One step of torch.optim's single-tensor Adam. Every fused multiply-add is one of its vector
// kernels' (lerp, addcmul, add with alpha); every other operation rounds.
void reference_step(Scalars& s, std::vector<float> grad, const optim::AdamRule& rule,
                    const optim::StepContext& context) {
  const double correction1 = 1 - std::pow(rule.beta1, static_cast<double>(context.step));
  const double correction2 = 1 - std::pow(rule.beta2, static_cast<double>(context.step));
  const auto root2 = static_cast<float>(std::pow(correction2, 0.5));
  const auto step_size = static_cast<float>(-(context.lr / correction1));
  const auto weight1 = static_cast<float>(1 - rule.beta1);
  const auto weight2 = static_cast<float>(1 - rule.beta2);
  for (size_t i = 0; i < grad.size(); ++i) {
    float& p = s.param[i];
    float& m = s.exp_avg[i];
    float& v = s.exp_avg_sq[i];
    float g = grad[i];
    if (rule.decoupled_weight_decay) {
      p *= static_cast<float>(1 - context.lr * context.weight_decay);
    } else {
      g = std::fma(static_cast<float>(context.weight_decay), p, g);
    }
    m = std::fma(weight1, g - m, m);
    v = std::fma(weight2 * g, g, v * static_cast<float>(rule.beta2));
  }
  const std::vector<float> roots = roots_of(s.exp_avg_sq);
  for (size_t i = 0; i < grad.size(); ++i) {
    const float denominator = roots[i] / root2 + static_cast<float>(rule.eps);
    s.param[i] += step_size * s.exp_avg[i] / denominator;
  }
}

// `ours` as torch computes it where the processor has FMA; else moments may differ by a rounding.
bool has_fma() {
#ifdef __x86_64__
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

void compare_with_reference(const optim::AdamRule& rule) {
  const auto adam = optim::make_rule(rule);
  const optim::ParamInfo info = {.name = "p"};
  const at::Tensor param = random_tensor({33, 7}, 21);
  optim::ParamState state;
  Scalars expected = {values_of(param), std::vector<float>(231), std::vector<float>(231)};
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor grad = random_tensor({33, 7}, 100 + static_cast<uint64_t>(step), 0.1);
    const optim::StepContext context = {0.01, 0.1, step};
    reference_step(expected, values_of(grad), rule, context);
    adam->update({&info, param, grad, &state}, context);
  }
  if (has_fma()) {
    BOOST_TEST(values_of(state.at("exp_avg")) == expected.exp_avg,
               boost::test_tools::per_element());
    BOOST_TEST(values_of(state.at("exp_avg_sq")) == expected.exp_avg_sq,
               boost::test_tools::per_element());
  }
  const std::vector<float> ours = values_of(param);
  for (size_t i = 0; i < ours.size(); ++i) {
    BOOST_TEST(std::abs(ours[i] - expected.param[i]) <= 4 * 0x1p-24);
  }
}

BOOST_AUTO_TEST_CASE(decoupled_decay_follows_the_formula) {
  compare_with_reference({.beta1 = 0.9, .beta2 = 0.95});
}

BOOST_AUTO_TEST_CASE(coupled_decay_follows_the_formula) {
  compare_with_reference({.beta2 = 0.99, .decoupled_weight_decay = false});
}

BOOST_AUTO_TEST_CASE(without_decay_a_zero_gradient_moves_nothing) {
  const auto adam = optim::make_rule(optim::AdamRule{});
  const optim::ParamInfo info = {.name = "p"};
  const at::Tensor param = random_tensor({10}, 1);
  const at::Tensor before = param.clone();
  optim::ParamState state;
  adam->update({&info, param, random_tensor({10}, 1, 0), &state}, {.lr = 0.1, .step = 1});
  BOOST_TEST(same_bits(param, before));
  BOOST_TEST(state.size() == 2U);
}

// Numbers of every kind as second moments, most of them ordinary, in no order.
at::Tensor moments_of_every_kind(int64_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array<float, 10> kRare = {0,         1e-45F, 1e-40F, 0x1p-126F, 1e-35F,
                                           0x1p-100F, 1e-29F, 3e38F,  kInfinity, -1};
  at::Tensor moments = at::empty({count}, at::kFloat);
  auto* const values = moments.mutable_data_ptr<float>();
  Numbers numbers(77);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t kind = numbers.below(1000);
    const auto mantissa = static_cast<float>(1.5 + numbers.next() / 2);
    values[i] =
        kind < kRare.size() ? kRare[kind] : std::ldexp(mantissa, static_cast<int>(kind % 60) - 55);
  }
  return moments;
}

// torch.optim's operations, one by one.
void step_by_operations(const UpdateTensors& tensors, const optim::StepContext& context) {
  const auto& [param, grad, exp_avg, exp_avg_sq] = tensors;
  const double correction1 = 1 - std::pow(0.9, static_cast<double>(context.step));
  const double correction2 = 1 - std::pow(0.999, static_cast<double>(context.step));
  at::Tensor(param).mul_(1 - context.lr * context.weight_decay);
  at::Tensor(exp_avg).lerp_(grad, 1 - 0.9);
  at::Tensor(exp_avg_sq).mul_(0.999).addcmul_(grad, grad, 1 - 0.999);
  const at::Tensor root = exp_avg_sq.sqrt().div_(std::pow(correction2, 0.5)).add_(1e-8);
  at::Tensor(param).addcdiv_(exp_avg, root, -(context.lr / correction1));
}

bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  return same_bits(a.nan_to_num(0.125), b.nan_to_num(0.125)) && same_bits(a.isnan(), b.isnan());
}

// Large updates take square roots on their own where that gives LibTorch's bits; small ones do so
// after the first large one. The bf16 parameter is rounded in the same loop.
BOOST_AUTO_TEST_CASE(updates_of_any_size_have_the_bits_of_torchs_operations) {
  const auto adam = optim::make_rule(optim::AdamRule{});
  const optim::ParamInfo info = {.name = "p"};
  for (const int64_t count : {1000, (1 << 22) + 37, 15, 70}) {
    const at::Tensor param = random_tensor({count}, 3), grad = random_tensor({count}, 4, 1e-6);
    optim::ParamState state = {{"exp_avg", random_tensor({count}, 5)},
                               {"exp_avg_sq", moments_of_every_kind(count)}};
    const UpdateTensors expected = {param.clone(), grad, state["exp_avg"].clone(),
                                    state["exp_avg_sq"].clone()};
    const at::Tensor rounded = param.to(at::kBFloat16);
    const optim::StepContext context = {.lr = 0.01, .weight_decay = 0.1, .step = 3};
    step_by_operations(expected, context);
    adam->update({&info, param, grad, &state, rounded}, context);
    BOOST_TEST(same_numbers(state["exp_avg"], expected.exp_avg));
    BOOST_TEST(same_numbers(state["exp_avg_sq"], expected.exp_avg_sq));
    BOOST_TEST(same_numbers(param, expected.param));
    BOOST_TEST(same_numbers(rounded.to(at::kFloat), param.to(at::kBFloat16).to(at::kFloat)));
  }
}

// FusedAdam: the same formula, but decay and update are added up before they move the parameter.
BOOST_AUTO_TEST_CASE(the_two_arithmetics_differ_by_roundings_only) {
  const auto torch = optim::make_rule(optim::AdamRule{});
  const auto fused =
      optim::make_rule(optim::AdamRule{.arithmetic = optim::AdamArithmetic::FusedAdam});
  const optim::ParamInfo info = {.name = "p"};
  const at::Tensor a = random_tensor({500}, 2);
  const at::Tensor b = a.clone();
  optim::ParamState state_a, state_b;
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor grad = random_tensor({500}, 50 + static_cast<uint64_t>(step));
    torch->update({&info, a, grad, &state_a}, {0.01, 0.1, step});
    fused->update({&info, b, grad, &state_b}, {0.01, 0.1, step});
  }
  BOOST_TEST(largest_difference(a, b) < 1e-6);
  BOOST_TEST(!same_bits(a, b));
}

BOOST_AUTO_TEST_CASE(fused_adam_without_bias_correction_takes_smaller_first_steps) {
  const auto plain = optim::make_rule(
      optim::AdamRule{.bias_correction = false, .arithmetic = optim::AdamArithmetic::FusedAdam});
  const optim::ParamInfo info = {.name = "p"};
  const at::Tensor param = random_tensor({1}, 1, 0);
  optim::ParamState state;
  const at::Tensor grad = param.clone().add_(1);
  plain->update({&info, param, grad, &state}, {.lr = 1, .step = 1});
  // m = 0.1, v = 0.001: p = -0.1 / sqrt(0.001)
  BOOST_TEST(values_of(param)[0] == -0.1F / std::sqrt(0.001F), boost::test_tools::tolerance(1e-4F));
}

BOOST_AUTO_TEST_SUITE_END()
