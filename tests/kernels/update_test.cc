#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <kernels/multi_tensor_update.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "kernels/random_slot.h"
#include "kernels/update_twin.h"

namespace {

using namespace kernels;

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16,
                      kF16 = ElementType::F16, kF8 = ElementType::F8E4M3,
                      kSplit = ElementType::SplitF32;

constexpr StepControl control_of(float inverse_loss_scale, float clip) {
  StepControl control;
  control.inverse_loss_scale = inverse_loss_scale;
  control.clip = clip;
  return control;
}
constexpr StepControl kControl = control_of(0.5F, 0.75F);

GroupSettings settings_of(RuleKind rule, Decay decay) {
  GroupSettings settings = {};
  settings.lr = 1e-2;
  settings.weight_decay = 0.1;
  settings.beta1 = 0.9;
  settings.beta2 = 0.95;
  settings.eps = 1e-8;
  settings.step = 3;
  settings.rule = rule;
  settings.decay = decay;
  settings.bias_correction = true;
  return settings;
}

struct Doubles {
  double param, grad, first, second;
};

// The rules as their papers write them.
Doubles stepped(const GroupSettings& g, Doubles x) {
  const double c1 = 1 - std::pow(g.beta1, static_cast<double>(g.step));
  const double c2 = 1 - std::pow(g.beta2, static_cast<double>(g.step));
  if (g.decay == Decay::L2) x.grad += g.weight_decay * x.param;
  double shrink = 0;
  if (g.decay == Decay::Decoupled) shrink = g.lr * g.weight_decay;
  if (g.decay == Decay::Independent) shrink = g.weight_decay;
  if (g.decay == Decay::Palm) shrink = g.lr * g.lr * g.weight_decay;
  x.param *= 1 - shrink;
  switch (g.rule) {
    case RuleKind::Adam:
    case RuleKind::FusedAdam:
      x.first = g.beta1 * x.first + (1 - g.beta1) * x.grad;
      x.second = g.beta2 * x.second + (1 - g.beta2) * x.grad * x.grad;
      x.param -= g.lr * (x.first / c1) / (std::sqrt(x.second / c2) + g.eps);
      break;
    case RuleKind::Sgd:
      x.first = g.beta1 * x.first + x.grad;
      x.param -= g.lr * x.first;
      break;
    case RuleKind::Lion: {
      const double u = g.beta1 * x.first + (1 - g.beta1) * x.grad;
      x.param -= g.lr * (u > 0 ? 1 : u < 0 ? -1 : 0);
      x.first = g.beta2 * x.first + (1 - g.beta2) * x.grad;
      break;
    }
    case RuleKind::Muon: break;
  }
  return x;
}

struct RuleCase {
  const char* name;
  RuleKind rule;
  Decay decay;
  TensorTypes types;
  double tolerance;  // of parameters, beside their magnitude
};
std::ostream& operator<<(std::ostream& out, const RuleCase& c) { return out << c.name; }

const RuleCase kRuleCases[] = {
    {"adamw", RuleKind::Adam, Decay::Decoupled, {kF32, kF32, {kF32, kF32}, kBF16}, 1e-6},
    {"adam l2", RuleKind::Adam, Decay::L2, {kF32, kF32, {kF32, kF32}, kNone}, 1e-6},
    {"fused adamw", RuleKind::FusedAdam, Decay::Decoupled, {kF32, kF32, {kF32, kF32}, kBF16}, 1e-6},
    {"fused adam l2", RuleKind::FusedAdam, Decay::L2, {kBF16, kF32, {kF32, kF32}, kF16}, 1e-6},
    {"sgd l2", RuleKind::Sgd, Decay::L2, {kF32, kF32, {kF32, kNone}, kBF16}, 1e-6},
    {"lion", RuleKind::Lion, Decay::Decoupled, {kBF16, kF32, {kF32, kNone}, kBF16}, 1e-6},
    {"lion independent",
     RuleKind::Lion,
     Decay::Independent,
     {kF32, kF32, {kF32, kNone}, kNone},
     1e-6},
    {"lion palm", RuleKind::Lion, Decay::Palm, {kF32, kF32, {kF32, kNone}, kNone}, 1e-6},
    {"split master", RuleKind::Adam, Decay::Decoupled, {kBF16, kSplit, {kF32, kF32}, kNone}, 1e-6},
    {"bf16 states", RuleKind::Adam, Decay::Decoupled, {kBF16, kSplit, {kBF16, kBF16}, kNone}, 1e-6},
    {"fp16 states", RuleKind::Adam, Decay::Decoupled, {kBF16, kF32, {kF16, kF16}, kBF16}, 1e-6},
    {"fp8 states", RuleKind::FusedAdam, Decay::Decoupled, {kBF16, kF32, {kF8, kF8}, kBF16}, 1e-6},
    {"fp8 and bf16", RuleKind::Adam, Decay::Decoupled, {kF16, kSplit, {kF8, kBF16}, kNone}, 1e-6},
    {"fp16 master", RuleKind::Adam, Decay::Decoupled, {kF32, kF16, {kF32, kF32}, kBF16}, 1e-3},
    {"bf16 parameter",
     RuleKind::Adam,
     Decay::Decoupled,
     {kBF16, kBF16, {kBF16, kBF16}, kNone},
     1e-2},
};

// One unit in the last place of a stored state of this magnitude.
double rounding_of(ElementType type, double value, double absmax) {
  switch (type) {
    case kBF16: return std::abs(value) / 256 + 1e-30;
    case kF16: return std::abs(value) / 2048 + absmax / stored_max(kF16) * 6e-8;
    case kF8: return std::abs(value) / 16 + absmax / stored_max(kF8) / 512;
    default: return 1e-6 * std::abs(value) + 1e-7;
  }
}

Doubles doubles_of(const TensorTypes& types, const TensorSlot& slot, int64_t i) {
  TensorFactors factors = {1, 1, {1, 1, 1}, {1, 1, 1}};
  for (int k = 0; k < 3; ++k) {
    if (is_scaled(scaled_type(types, k))) factors.scale[k] = slot.scale[k]->scale;
  }
  Element e = decode_element(AnyTypes{types}, stored_element(types, slot, i));
  const double grad = e.grad;
  apply_factors(AnyTypes{types}, factors, e);
  return {e.param, grad * kControl.inverse_loss_scale * kControl.clip, e.state[0], e.state[1]};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(updates)

BOOST_DATA_TEST_CASE(twin_follows_the_formula_in_double, boost::unit_test::data::make(kRuleCases)) {
  constexpr int64_t kCount = 500;
  const GroupSettings settings = settings_of(sample.rule, sample.decay);
  SlotMemory memory = random_slot(sample.types, kCount, 1);
  const TensorSlot slot = memory.slot(sample.types);
  std::vector<Doubles> expected;
  double first_max = 0, second_max = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    expected.push_back(stepped(settings, doubles_of(sample.types, slot, i)));
    first_max = std::max(first_max, std::abs(expected.back().first));
    second_max = std::max(second_max, std::abs(expected.back().second));
  }
  update_twin({sample.types, sample.rule, make_scalars(settings), kControl}, slot);
  for (int64_t i = 0; i < kCount; ++i) {
    const Doubles found = doubles_of(sample.types, slot, i);
    const Doubles& wanted = expected[static_cast<size_t>(i)];
    BOOST_TEST(std::abs(found.param - wanted.param) <=
               sample.tolerance * (1 + std::abs(wanted.param)));
    BOOST_TEST(std::abs(found.first - wanted.first) <=
               rounding_of(sample.types.state[0], wanted.first, first_max));
    if (sample.types.state[1] == kNone) continue;
    BOOST_TEST(std::abs(found.second - wanted.second) <=
               rounding_of(sample.types.state[1], wanted.second, second_max));
  }
}

BOOST_AUTO_TEST_CASE(model_copy_is_the_master_rounded) {
  const TensorTypes types = {kF32, kF32, {kF32, kF32}, kBF16};
  SlotMemory memory = random_slot(types, 100, 2);
  const TensorSlot slot = memory.slot(types);
  const RuleScalars scalars = make_scalars(settings_of(RuleKind::Adam, Decay::Decoupled));
  update_twin({types, RuleKind::Adam, scalars, kControl}, slot);
  for (int64_t i = 0; i < 100; ++i) {
    const float master = decode(kF32, stored_bits(slot.main, i, kF32));
    BOOST_TEST(stored_bits(slot.model, i, kBF16) == encode(kBF16, master));
  }
}

BOOST_AUTO_TEST_CASE(skipped_step_changes_nothing) {
  const TensorTypes types = {kF32, kF32, {kF8, kF16}, kBF16};
  SlotMemory memory = random_slot(types, 100, 3);
  const SlotMemory before = memory;
  StepControl control = kControl;
  control.skip = 1;
  const RuleScalars scalars = make_scalars(settings_of(RuleKind::Adam, Decay::Decoupled));
  update_twin({types, RuleKind::Adam, scalars, control}, memory.slot(types));
  BOOST_TEST((memory.tensors == before.tensors));
  BOOST_TEST(memory.scales[1].scale == before.scales[1].scale);
}

BOOST_AUTO_TEST_CASE(zero_states_keep_a_scale_of_zero) {
  const TensorTypes types = {kF32, kF32, {kF8, kF8}, kNone};
  SlotMemory memory = random_slot(types, 10, 4);
  for (const auto tensor : {SlotMemory::Grad, SlotMemory::State0, SlotMemory::State1}) {
    memory.tensors[tensor].assign(memory.tensors[tensor].size(), 0);
  }
  const RuleScalars scalars = make_scalars(settings_of(RuleKind::Adam, Decay::Decoupled));
  update_twin({types, RuleKind::Adam, scalars, kControl}, memory.slot(types));
  BOOST_TEST(memory.scales[1].scale == 0);
  BOOST_TEST(memory.scales[2].scale == 0);
  BOOST_TEST((memory.tensors[SlotMemory::State0] == std::vector<unsigned char>(10, 0)));
}

// A scale of which fp32 has no inverse.
BOOST_AUTO_TEST_CASE(magnitudes_too_small_to_scale_become_zero) {
  for (const ElementType type : {kF16, kF8}) {
    const TensorTypes types = {kF32, kF32, {type, kNone}, kNone};
    SlotMemory memory = random_slot(types, 2, 4);
    auto& state = memory.tensors[SlotMemory::State0];
    state.assign(state.size(), 0);
    memory.tensors[SlotMemory::Grad] = encoded({1e-40F, 0}, kF32, nullptr);
    memory.tensors[SlotMemory::Main] = encoded({0, 0}, kF32, nullptr);
    const RuleScalars scalars = make_scalars(settings_of(RuleKind::Sgd, Decay::L2));
    update_twin({types, RuleKind::Sgd, scalars, kControl}, memory.slot(types));
    BOOST_TEST(memory.scales[1].scale == 0);
    BOOST_TEST((state == std::vector<unsigned char>(state.size(), 0)));
  }
}

BOOST_AUTO_TEST_CASE(split_and_join_lose_nothing) {
  std::mt19937 random(5);
  int ties = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float value = float_of_bits(bits);
    if (!std::isfinite(value) || !std::isfinite(value * 1.01F)) continue;
    const SplitFloat parts = split(value);
    BOOST_REQUIRE_EQUAL(bits_of_float(join(parts)), bits);
    if ((bits & 0xFFFFU) == 0x8000U) {
      ++ties;
    } else {
      BOOST_REQUIRE_EQUAL(parts.upper, encode(kBF16, value));
    }
  }
  BOOST_TEST(ties > 0);
}

BOOST_AUTO_TEST_CASE(every_stored_value_survives_decoding_and_encoding) {
  for (const ElementType type : {kBF16, kF16, kF8}) {
    for (uint32_t bits = 0; bits < 1U << 8 * bytes_of(type); ++bits) {
      const float value = decode(type, bits);
      if (std::isnan(value) || (type == kF16 && std::isinf(value))) continue;
      BOOST_REQUIRE_EQUAL(encode(type, value), bits);
    }
  }
}

BOOST_AUTO_TEST_CASE(bias_corrections_are_powers) {
  for (const int64_t step : {1, 2, 3, 1000, 1000000}) {
    const double expected = std::pow(0.999, static_cast<double>(step));
    BOOST_TEST(power(0.999, step) == expected, boost::test_tools::tolerance(1e-12));
  }
}

BOOST_AUTO_TEST_CASE(senseless_requests_are_refused) {
  UpdateRequest request = {};
  request.table.types = {kF32, kF32, {kF32, kF32}, kNone};
  request.rule = RuleKind::Adam;
  request.block_count = 1;
  BOOST_TEST(multi_tensor_update(request, nullptr) == cudaSuccess);  // nothing to do, no launch
  UpdateRequest muon = request, lion = request, typeless = request, nowhere = request;
  muon.rule = RuleKind::Muon;
  lion.rule = RuleKind::Lion;  // has one state
  typeless.table.types.grad = kNone;
  nowhere.block_count = 0;
  for (const UpdateRequest& refused : {muon, lion, typeless, nowhere}) {
    BOOST_TEST(multi_tensor_update(refused, nullptr) == cudaErrorInvalidValue);
  }
}

BOOST_AUTO_TEST_SUITE_END()
