// AdamW and Adam against formulas in plain C++ and against ATen's operations and kernels.
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
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

// FusedAdam's formula in ATen's operations, as recordings without TransformerEngine make it.
void fused_adam_by_operations(const UpdateTensors& tensors, const optim::AdamRule& rule,
                              const optim::StepContext& context) {
  const auto& [param, given, exp_avg, exp_avg_sq] = tensors;
  const auto step = static_cast<double>(context.step);
  const double correction1 = 1 - std::pow(rule.beta1, step);
  const double correction2 = 1 - std::pow(rule.beta2, step);
  const bool is_decoupled = rule.decoupled_weight_decay;
  const at::Tensor grad = is_decoupled ? given : at::add(given, param, context.weight_decay);
  at::Tensor(exp_avg).mul_(rule.beta1).add_(grad, 1 - rule.beta1);
  at::Tensor(exp_avg_sq).mul_(rule.beta2).addcmul_(grad, grad, 1 - rule.beta2);
  const at::Tensor denominator = at::div(exp_avg_sq, correction2).sqrt_().add_(rule.eps);
  at::Tensor update = at::div(exp_avg, correction1).div_(denominator);
  if (is_decoupled) update.add_(param, context.weight_decay);
  at::Tensor(param).add_(update, -context.lr);
}

BOOST_AUTO_TEST_CASE(fused_adam_has_the_bits_of_atens_operations_for_any_size) {
  const optim::ParamInfo info = {.name = "p"};
  for (const bool is_decoupled : {true, false}) {
    const optim::AdamRule rule = {.decoupled_weight_decay = is_decoupled,
                                  .arithmetic = optim::AdamArithmetic::FusedAdam};
    const auto adam = optim::make_rule(rule);
    for (const int64_t count : {1000, (1 << 22) + 37, 15, 31, 70, 16'391}) {
      const at::Tensor param = random_tensor({count}, 3), grad = random_tensor({count}, 4, 1e-6);
      optim::ParamState state = {{"exp_avg", random_tensor({count}, 5)},
                                 {"exp_avg_sq", moments_of_every_kind(count)}};
      const UpdateTensors expected = {param.clone(), grad, state["exp_avg"].clone(),
                                      state["exp_avg_sq"].clone()};
      const at::Tensor rounded = param.to(at::kBFloat16);
      const optim::StepContext context = {.lr = 0.01, .weight_decay = 0.1, .step = 3};
      fused_adam_by_operations(expected, rule, context);
      adam->update({&info, param, grad, &state, rounded}, context);
      BOOST_TEST(same_numbers(state["exp_avg"], expected.exp_avg));
      BOOST_TEST(same_numbers(state["exp_avg_sq"], expected.exp_avg_sq));
      BOOST_TEST(same_numbers(param, expected.param));
      BOOST_TEST(same_numbers(rounded.to(at::kFloat), param.to(at::kBFloat16).to(at::kFloat)));
    }
  }
}

// TransformerEngine's FusedAdam: betas are float, and so are their differences from 1; powers are
// taken in double.
void transformer_engine_step(Scalars& s, const std::vector<float>& grad,
                             const optim::AdamRule& rule, const optim::StepContext& context) {
  const auto beta1 = static_cast<float>(rule.beta1), beta2 = static_cast<float>(rule.beta2);
  const auto correction = [&](float beta) {
    return static_cast<float>(1 - std::pow(beta, static_cast<double>(context.step)));
  };
  const auto lr = static_cast<float>(context.lr), eps = static_cast<float>(rule.eps);
  const auto decay = static_cast<float>(context.weight_decay);
  for (size_t i = 0; i < grad.size(); ++i) {
    float& p = s.param[i];
    float& m = s.exp_avg[i];
    float& v = s.exp_avg_sq[i];
    const float g = rule.decoupled_weight_decay ? grad[i] : std::fma(decay, p, grad[i]);
    m = std::fma(1 - beta1, g, beta1 * m);
    v = std::fma((1 - beta2) * g, g, beta2 * v);
    float update = m / correction(beta1) / (std::sqrt(v / correction(beta2)) + eps);
    if (rule.decoupled_weight_decay) update = std::fma(decay, p, update);
    p = std::fma(-lr, update, p);
  }
}

BOOST_AUTO_TEST_CASE(transformer_engines_arithmetic_is_in_fp32_from_its_betas_on) {
  for (const bool is_decoupled : {true, false}) {
    const optim::AdamRule rule = {.decoupled_weight_decay = is_decoupled,
                                  .arithmetic = optim::AdamArithmetic::TransformerEngine};
    const auto adam = optim::make_rule(rule);
    const optim::ParamInfo info = {.name = "p"};
    const at::Tensor param = random_tensor({33, 7}, 21);
    optim::ParamState state;
    Scalars expected = {values_of(param), std::vector<float>(231), std::vector<float>(231)};
    for (int64_t step = 1; step <= 4; ++step) {
      const at::Tensor grad = random_tensor({33, 7}, 100 + static_cast<uint64_t>(step), 0.1);
      const optim::StepContext context = {0.01, 0.1, step};
      transformer_engine_step(expected, values_of(grad), rule, context);
      adam->update({&info, param, grad, &state}, context);
    }
    BOOST_TEST(values_of(state.at("exp_avg")) == expected.exp_avg,
               boost::test_tools::per_element());
    BOOST_TEST(values_of(state.at("exp_avg_sq")) == expected.exp_avg_sq,
               boost::test_tools::per_element());
    BOOST_TEST(values_of(param) == expected.param, boost::test_tools::per_element());
  }
}

// What float makes of 1 - 0.999: 1.3e-5 less.
BOOST_AUTO_TEST_CASE(transformer_engines_second_moment_grows_by_a_weight_of_fp32) {
  const auto second_moment = [](optim::AdamArithmetic arithmetic) {
    const optim::ParamInfo info = {.name = "p"};
    optim::ParamState state;
    const at::Tensor param = random_tensor({1}, 1), grad = random_tensor({1}, 1, 0).add_(1);
    optim::make_rule(optim::AdamRule{.arithmetic = arithmetic})
        ->update({&info, param, grad, &state}, {.lr = 1});
    return values_of(state.at("exp_avg_sq"))[0];
  };
  BOOST_TEST(second_moment(optim::AdamArithmetic::TransformerEngine) == 0.000999987125F);
  BOOST_TEST(second_moment(optim::AdamArithmetic::FusedAdam) == 0.001F);
  BOOST_TEST(second_moment(optim::AdamArithmetic::Torch) == 0.001F);
  BOOST_TEST(second_moment(optim::AdamArithmetic::Fused) == 0.001F);
}

// With betas that float has, so that only roundings differ.
BOOST_AUTO_TEST_CASE(arithmetics_differ_by_roundings_only) {
  const optim::ParamInfo info = {.name = "p"};
  const auto steps = [&](optim::AdamArithmetic arithmetic) {
    const auto adam = optim::make_rule(
        optim::AdamRule{.beta1 = 0.875, .beta2 = 0.984375, .arithmetic = arithmetic});
    const at::Tensor param = random_tensor({500}, 2);
    optim::ParamState state;
    for (int64_t step = 1; step <= 3; ++step) {
      const at::Tensor grad = random_tensor({500}, 50 + static_cast<uint64_t>(step));
      adam->update({&info, param, grad, &state}, {0.01, 0.1, step});
    }
    return param;
  };
  const at::Tensor torch = steps(optim::AdamArithmetic::Torch);
  for (const auto other :
       {optim::AdamArithmetic::FusedAdam, optim::AdamArithmetic::TransformerEngine}) {
    BOOST_TEST(largest_difference(torch, steps(other)) < 1e-6);
    BOOST_TEST(!same_bits(torch, steps(other)));
  }
  BOOST_TEST(largest_difference(torch, steps(optim::AdamArithmetic::Fused)) < 1e-6);
}

// What torch.optim calls for fused=True.
void torch_fused_step(const UpdateTensors& t, const optim::AdamRule& rule,
                      const optim::StepContext& context) {
  const at::Tensor steps = at::full({}, context.step, at::kFloat);
  if (rule.decoupled_weight_decay) {
    at::_fused_adamw_(t.param, t.grad, t.exp_avg, t.exp_avg_sq, {}, steps, context.lr, rule.beta1,
                      rule.beta2, context.weight_decay, rule.eps, false, false);
  } else {
    at::_fused_adam_(t.param, t.grad, t.exp_avg, t.exp_avg_sq, {}, steps, context.lr, rule.beta1,
                     rule.beta2, context.weight_decay, rule.eps, false, false);
  }
}

// Its last elements, fewer than a vector, round otherwise.
BOOST_AUTO_TEST_CASE(fused_has_the_bits_of_torchs_fused_kernel) {
  if (!has_fma()) return;
  const optim::ParamInfo info = {.name = "p"};
  for (const bool is_decoupled : {true, false}) {
    const optim::AdamRule rule = {.beta1 = is_decoupled ? 0.9 : 0.25,
                                  .beta2 = is_decoupled ? 0.999 : 0.95,
                                  .decoupled_weight_decay = is_decoupled,
                                  .arithmetic = optim::AdamArithmetic::Fused};
    const auto adam = optim::make_rule(rule);
    for (const int64_t count : {1, 7, 8, 15, 31, 32, 47, 231, (1 << 14) + 3, 100'005}) {
      const at::Tensor param = random_tensor({count}, 3);
      const at::Tensor rounded = param.to(at::kBFloat16);
      optim::ParamState state;
      UpdateTensors expected = {param.clone(), {}, at::zeros_like(param), at::zeros_like(param)};
      for (int64_t step = 1; step <= 3; ++step) {
        const optim::StepContext context = {0.01, step == 2 ? 0 : 0.1, step};
        expected.grad = random_tensor({count}, 30 + static_cast<uint64_t>(step), 1e-3);
        adam->update({&info, param, expected.grad, &state, rounded}, context);
        torch_fused_step(expected, rule, context);
      }
      BOOST_TEST_CONTEXT(count << " elements") {
        BOOST_TEST(same_bits(state["exp_avg"], expected.exp_avg));
        BOOST_TEST(same_bits(state["exp_avg_sq"], expected.exp_avg_sq));
        BOOST_TEST(same_bits(param, expected.param));
        BOOST_TEST(same_bits(rounded, param.to(at::kBFloat16)));
      }
    }
  }
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
