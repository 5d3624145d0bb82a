// The kernels' formulas as loops of the CPU, against their twins, bit for bit.
#include "step/device/element_updates.h"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/update_twin.h"
#include "optim/step/tensors.h"

namespace {

using kernels::ElementType;
using kernels::RuleKind;

struct Tensors {
  std::vector<uint32_t> grad;  // room for any type
  std::vector<float> main, state[2];
  std::vector<uint16_t> model;
};

float number(Numbers& numbers) {
  constexpr float kSpecial[] = {0,      -0.0F, INFINITY, -INFINITY, NAN,
                                1e-40F, 1e38F, 65519,    65520,     1.00390625F};
  if (numbers.below(20) == 0) return kSpecial[numbers.below(std::size(kSpecial))];
  return static_cast<float>(numbers.next() * std::pow(2.0, numbers.next() * 20));
}

Tensors make_tensors(size_t count, ElementType grad_type) {
  Numbers numbers(count);
  Tensors made;
  made.grad.resize(count);
  made.model.assign(count, 7);
  for (size_t i = 0; i < count; ++i) {
    kernels::store_bits(made.grad.data(), static_cast<int64_t>(i), grad_type,
                        kernels::encode(grad_type, number(numbers)));
    made.main.push_back(number(numbers));
    made.state[0].push_back(number(numbers));
    made.state[1].push_back(std::fabs(number(numbers)));
  }
  return made;
}

struct UpdateCase {
  RuleKind rule;
  ElementType grad, model;
  size_t count;
  kernels::RuleScalars scalars;
};

constexpr float kInverseScale = 0.37F, kClip = 0.81F;

Tensors by_loops(const UpdateCase& c, bool has_states) {
  Tensors t = make_tensors(c.count, c.grad);
  optim::ElementSpan span;
  span.rule = c.rule;
  span.scalars = c.scalars;
  span.inverse_loss_scale = kInverseScale;
  span.clip = kClip;
  span.grad = t.grad.data();
  span.grad_type = c.grad;
  span.main = t.main.data();
  const bool has_second = c.rule == RuleKind::Adam || c.rule == RuleKind::FusedAdam;
  if (has_states) span.state[0] = t.state[0].data();
  if (has_states && has_second) span.state[1] = t.state[1].data();
  if (c.model != ElementType::None) span.model = t.model.data();
  span.model_type = c.model;
  span.count = static_cast<int64_t>(c.count);
  optim::update_elements(span);
  return t;
}

Tensors by_twin(const UpdateCase& c, bool has_states) {
  Tensors t = make_tensors(c.count, c.grad);
  const bool has_second = c.rule == RuleKind::Adam || c.rule == RuleKind::FusedAdam;
  kernels::TensorTypes types = {};
  types.grad = c.grad;
  types.main = ElementType::F32;
  if (has_states) types.state[0] = ElementType::F32;
  if (has_states && has_second) types.state[1] = ElementType::F32;
  types.model = c.model;
  kernels::TensorSlot slot = {};
  slot.grad = t.grad.data();
  slot.main = t.main.data();
  slot.state[0] = t.state[0].data();
  slot.state[1] = t.state[1].data();
  slot.model = t.model.data();
  slot.count = static_cast<int64_t>(c.count);
  kernels::StepControl control;
  control.inverse_loss_scale = kInverseScale;
  control.clip = kClip;
  kernels::update_twin({types, c.rule, c.scalars, control}, slot);
  return t;
}

template <class T>
bool same_values(const std::vector<T>& a, const std::vector<T>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;  // whose payload the processor chooses
    }
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return false;
  }
  return true;
}

kernels::RuleScalars scalars_of(RuleKind rule, kernels::Decay decay) {
  kernels::GroupSettings settings = {};
  settings.rule = rule;
  settings.decay = decay;
  settings.lr = 0.013;
  settings.weight_decay = 0.1;
  settings.beta1 = 0.9;
  settings.beta2 = 0.95;
  settings.eps = 1e-8;
  settings.step = 3;
  settings.bias_correction = true;
  return kernels::make_scalars(settings);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(element_updates)

BOOST_AUTO_TEST_CASE(loops_have_the_bits_of_the_twins) {
  using enum ElementType;
  for (const RuleKind rule : {RuleKind::Adam, RuleKind::FusedAdam, RuleKind::Sgd, RuleKind::Lion}) {
    for (const kernels::Decay decay : {kernels::Decay::Decoupled, kernels::Decay::L2}) {
      for (const ElementType grad : {F32, BF16, F16}) {
        for (const ElementType model : {None, BF16, F16}) {
          for (const size_t count : {size_t{0}, size_t{1}, size_t{37}, size_t{5000}}) {
            const UpdateCase c = {rule, grad, model, count, scalars_of(rule, decay)};
            const Tensors ours = by_loops(c, true), expected = by_twin(c, true);
            BOOST_TEST_CONTEXT("rule " << static_cast<int>(rule) << ", grad "
                                       << static_cast<int>(grad) << ", model "
                                       << static_cast<int>(model) << ", " << count) {
              BOOST_TEST(same_values(ours.main, expected.main));
              BOOST_TEST(same_values(ours.state[0], expected.state[0]));
              BOOST_TEST(same_values(ours.state[1], expected.state[1]));
              BOOST_TEST(same_values(ours.model, expected.model));
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_rule_without_states_needs_no_memory_for_them) {
  const UpdateCase c = {RuleKind::Sgd, ElementType::BF16, ElementType::BF16, 3000,
                        scalars_of(RuleKind::Sgd, kernels::Decay::L2)};
  const Tensors ours = by_loops(c, false), expected = by_twin(c, false);
  BOOST_TEST(same_values(ours.main, expected.main));
  BOOST_TEST(same_values(ours.model, expected.model));
}

BOOST_AUTO_TEST_SUITE_END()
