// The update's kernels, compiled for the CPU, against their twins: bit for bit.
#include <kernels/multi_tensor_update.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/placed_tensors.h"

namespace {

using namespace kernels;

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16,
                      kF16 = ElementType::F16, kF8 = ElementType::F8E4M3,
                      kSplit = ElementType::SplitF32;

constexpr Decay kDecays[] = {Decay::Decoupled, Decay::L2, Decay::Independent, Decay::Palm};

GroupSettings drawn_settings(RuleKind rule, std::mt19937& random) {
  GroupSettings settings = {};
  settings.lr = 1e-3 * (1 + below(9, random));
  settings.weight_decay = 0.1 * below(3, random);
  settings.beta1 = random() % 3 == 0 ? 0.3 : 0.9;  // both branches of lerp
  settings.beta2 = 0.95;
  settings.eps = 1e-8;
  settings.step = 1 + below(5, random);
  settings.rule = rule;
  const bool is_lion = rule == RuleKind::Lion;
  settings.decay = rule == RuleKind::Sgd ? Decay::L2 : kDecays[random() % (is_lion ? 4 : 2)];
  settings.bias_correction = random() % 2 == 0;
  return settings;
}

// A table of random tensors under two groups, and what its steps must give.
struct UpdateCase {
  TensorTypes types;
  RuleKind rule;
  std::vector<int64_t> counts;
  bool misaligned = false;
  bool has_special_values = false;
};

void make_special(SlotMemory& memory, ElementType type) {
  using Limits = std::numeric_limits<float>;
  const float values[] = {Limits::infinity(),   -Limits::infinity(), Limits::quiet_NaN(),
                          Limits::denorm_min(), Limits::max(),       -0.0F};
  for (int64_t i = 0; i < memory.count; i += 5) {
    const float value = values[i / 5 % 6];
    store_bits(memory.tensors[SlotMemory::Grad].data(), i, type, encode(type, value));
  }
}

// Empty, or what differs after two steps.
std::string problem_of(const UpdateCase& c, std::mt19937& random) {
  const RuleScalars scalars[] = {make_scalars(drawn_settings(c.rule, random)),
                                 make_scalars(drawn_settings(c.rule, random))};
  StepControl control;
  control.inverse_loss_scale = random() % 2 == 0 ? 1 : 0.37F;
  control.clip = random() % 2 == 0 ? 1 : 0.75F;
  control.skip = random() % 16 == 0 ? 1 : 0;
  std::vector<SlotMemory> expected;
  std::vector<PlacedSlot> placed;
  std::vector<TensorSlot> slots;
  for (const int64_t count : c.counts) {
    expected.push_back(slot_of_pool(c.types, count, random));
    if (c.has_special_values) make_special(expected.back(), c.types.grad);
    placed.emplace_back(expected.back(), c.types, random, c.misaligned);
  }
  int64_t chunk_count = 0;
  for (PlacedSlot& slot : placed) {
    slots.push_back(slot.slot());
    slots.back().group = random() % 2;
    chunk_count += chunks_of(slots.back().count);
  }
  std::vector<Chunk> chunks(static_cast<size_t>(chunk_count));
  const auto slot_count = static_cast<uint32_t>(slots.size());
  fill_chunks(slots.data(), slot_count, chunks.data());
  const TensorTable table = {slots.data(), chunks.data(), slot_count,
                             static_cast<uint32_t>(chunk_count), c.types};
  for (int step = 0; step < 2; ++step) {
    draw_order(random);
    const UpdateRequest request = {table, c.rule, scalars, &control, drawn_block_count(random)};
    if (multi_tensor_update(request, nullptr) != cudaSuccess) return "refused";
    for (size_t i = 0; i < slots.size(); ++i) {
      update_twin({c.types, c.rule, scalars[slots[i].group], control}, expected[i].slot(c.types));
    }
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    const std::string problem = placed[i].difference(expected[i]);
    if (!problem.empty()) return "parameter " + std::to_string(i) + ": " + problem;
  }
  return "";
}

// All types that a table may have under a rule.
std::vector<TensorTypes> all_types(RuleKind rule) {
  std::vector<TensorTypes> all;
  for (const ElementType grad : {kF32, kBF16, kF16}) {
    for (const ElementType main : {kF32, kBF16, kF16, kSplit}) {
      for (const ElementType first : {kNone, kF32, kBF16, kF16, kF8}) {
        for (const ElementType second : {kNone, kF32, kBF16, kF16, kF8}) {
          for (const ElementType model : {kNone, kBF16, kF16}) {
            const TensorTypes types = {grad, main, {first, second}, model};
            if (can_update(types, rule)) all.push_back(types);
          }
        }
      }
    }
  }
  return all;
}

// Those with kernels of their own.
std::vector<TensorTypes> compiled_types() {
  std::vector<TensorTypes> all = {{kBF16, kBF16, {kBF16, kBF16}, kNone},
                                  {kF32, kF32, {kF32, kNone}, kBF16},
                                  {kBF16, kF32, {kF32, kNone}, kBF16}};
  for (const ElementType state : {kF32, kBF16, kF16, kF8}) {
    for (const ElementType grad : {kF32, kBF16}) {
      all.push_back({grad, kF32, {state, state}, grad == kF32 ? kF16 : kBF16});
      all.push_back({grad, kSplit, {state, state}, kNone});
    }
  }
  return all;
}

void check_all_types(RuleKind rule) {
  std::mt19937 random(static_cast<unsigned>(rule) + 1);
  const std::vector<TensorTypes> all = all_types(rule);
  BOOST_TEST_MESSAGE(all.size() << " sets of types");
  const int repeats = std::getenv("SHARDWISE_LONG_TESTS") ? 20 : 1;
  for (int i = 0; i < repeats; ++i) {
    for (const TensorTypes& types : all) {
      UpdateCase c = {types, rule, {}, random() % 2 == 0, random() % 8 == 0};
      for (size_t n = 1 + random() % 4; n > 0; --n) c.counts.push_back(drawn_count(random));
      const std::string problem = problem_of(c, random);
      BOOST_TEST(problem == "", problem << ": types " << int(types.grad) << int(types.main)
                                        << int(types.state[0]) << int(types.state[1])
                                        << int(types.model));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(updates_on_the_cpu)

BOOST_AUTO_TEST_CASE(adam_of_all_types_equals_its_twin) { check_all_types(RuleKind::Adam); }
BOOST_AUTO_TEST_CASE(fused_adam_of_all_types_equals_its_twin) {
  check_all_types(RuleKind::FusedAdam);
}
BOOST_AUTO_TEST_CASE(sgd_of_all_types_equals_its_twin) { check_all_types(RuleKind::Sgd); }
BOOST_AUTO_TEST_CASE(lion_of_all_types_equals_its_twin) { check_all_types(RuleKind::Lion); }

// Every size up to two turns of a block, aligned and not.
BOOST_AUTO_TEST_CASE(tails_of_any_length_are_updated_once) {
  std::mt19937 random(7);
  const int64_t step = std::getenv("SHARDWISE_LONG_TESTS") ? 1 : 173;
  for (const TensorTypes& types : compiled_types()) {
    const RuleKind rule = types.state[1] == kNone ? RuleKind::Lion : RuleKind::Adam;
    for (int64_t count = random() % step; count < 4200; count += step) {
      const std::string problem = problem_of({types, rule, {count}, count % 2 == 0}, random);
      BOOST_TEST(problem == "", problem << ": " << count << " elements");
    }
  }
}

BOOST_AUTO_TEST_CASE(tensors_of_many_chunks_are_updated_once) {
  std::mt19937 random(8);
  std::vector<TensorTypes> all = compiled_types();
  all.push_back({kF16, kSplit, {kBF16, kNone}, kF16});  // at run time
  all.push_back({kF16, kF16, {kF16, kF8}, kBF16});
  for (const TensorTypes& types : all) {
    const RuleKind rule = types.state[1] == kNone ? RuleKind::Sgd : RuleKind::FusedAdam;
    for (const bool misaligned : {false, true}) {
      const std::string problem = problem_of(
          {types, rule, {kChunkElements, 5, 2 * kChunkElements + 3}, misaligned}, random);
      BOOST_TEST(problem == "", problem);
    }
  }
}

// More than one block of keep_scales().
BOOST_AUTO_TEST_CASE(many_scaled_tensors_keep_a_scale_each) {
  std::mt19937 random(9);
  const UpdateCase c = {
      {kBF16, kF16, {kF8, kF16}, kNone}, RuleKind::Adam, std::vector<int64_t>(300, 9)};
  BOOST_TEST(problem_of(c, random) == "");
}

BOOST_AUTO_TEST_SUITE_END()
