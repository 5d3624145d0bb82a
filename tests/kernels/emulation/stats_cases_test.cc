// Gradient statistics and the step's control, compiled for the CPU, against their twins.
#include <kernels/grad_stats.h>
#include <kernels/prepare_step.h>

#include <cstdlib>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/placed_tensors.h"
#include "kernels/stats_twin.h"

namespace {

using namespace kernels;

bool same(const TensorStats& a, const TensorStats& b) {
  const bool are_nan = std::isnan(a.square_sum) && std::isnan(b.square_sum);
  return (a.square_sum == b.square_sum || are_nan) && a.zero_count == b.zero_count;
}

TensorTypes types_with(ElementType grad) {
  return {grad, ElementType::F32, {ElementType::None, ElementType::None}, ElementType::None};
}

std::string problem_of(ElementType type, const std::vector<int64_t>& counts, std::mt19937& random) {
  const TensorTypes types = types_with(type);
  const bool misaligned = random() % 2 == 0;
  StepControl control;
  control.inverse_loss_scale = random() % 2 == 0 ? 1 : 0.37F;
  std::vector<PlacedSlot> placed;
  std::vector<TensorSlot> slots;
  for (const int64_t count : counts) {
    placed.emplace_back(slot_of_pool(types, count, random), types, random, misaligned);
  }
  constexpr TensorStats kUntouched = {-1, -1};
  std::vector<TensorStats> expected(counts.size(), kUntouched), found(expected);
  int64_t chunk_count = 0;
  for (PlacedSlot& slot : placed) {
    slots.push_back(slot.slot());
    const size_t index = slots.size() - 1;
    slots.back().stats_index = random() % 8 == 0 ? kNoStats : static_cast<uint32_t>(index);
    chunk_count += chunks_of(slots.back().count);
    if (slots.back().stats_index == kNoStats) continue;
    expected[index] = stats_twin(slots.back(), type, control.inverse_loss_scale);
  }
  std::vector<Chunk> chunks(static_cast<size_t>(chunk_count));
  std::vector<TensorStats> partials(chunks.size(), kUntouched);
  const auto slot_count = static_cast<uint32_t>(slots.size());
  fill_chunks(slots.data(), slot_count, chunks.data());
  draw_order(random);
  const GradStatsRequest request = {
      {slots.data(), chunks.data(), slot_count, static_cast<uint32_t>(chunk_count), types},
      &control,
      partials.data(),
      found.data(),
      drawn_block_count(random)};
  if (grad_stats(request, nullptr) != cudaSuccess) return "refused";
  for (size_t i = 0; i < found.size(); ++i) {
    if (!same(found[i], expected[i])) return "the sums of tensor " + std::to_string(i) + " differ";
  }
  return "";
}

constexpr float kScale = 1024;
constexpr ElementType kGradTypes[] = {ElementType::F32, ElementType::BF16, ElementType::F16};

// A control by the kernel and by the twin, from random sums of this many tensors.
std::string control_problem(uint32_t tensor_count, uint32_t group_count, std::mt19937& random) {
  std::vector<TensorStats> tensors(tensor_count);
  for (TensorStats& stats : tensors) {
    stats = {1e-3 * below(100000, random), 1.0 * below(7, random)};
  }
  const bool is_infinite = tensor_count > 0 && random() % 4 == 0;
  if (is_infinite) tensors[random() % tensor_count].square_sum = INFINITY;
  StepControl found;
  found.max_norm = random() % 2 == 0 ? 0 : 1;
  found.check_finite = random() % 2;
  StepControl expected = found;
  control_twin(expected, tensors);
  std::vector<GroupSettings> groups(group_count);
  for (GroupSettings& group : groups) {
    group.lr = 1e-3 * below(10, random);
    group.beta1 = 0.9;
    group.beta2 = 0.99;
    group.step = random() % 100;
    group.rule = static_cast<RuleKind>(random() % 5);
  }
  const std::vector<GroupSettings> before = groups;
  RuleScalars untouched = {};
  untouched.minus_lr = -77;
  std::vector<RuleScalars> scalars(group_count, untouched);
  draw_order(random);
  const StepControlRequest request = {tensors.data(), tensor_count,  group_count,
                                      &found,         groups.data(), scalars.data()};
  if (finish_step_control(request, nullptr) != cudaSuccess) return "refused";
  if (!same({found.grad_norm, 0}, {expected.grad_norm, 0}) || found.clip != expected.clip ||
      found.zero_count != expected.zero_count || found.skip != expected.skip ||
      found.is_finite != expected.is_finite) {
    return "the control differs";
  }
  for (uint32_t i = 0; i < group_count; ++i) {
    GroupSettings settings = before[i];
    settings.step += 1 - expected.skip;
    RuleScalars wanted = expected.skip ? untouched : make_scalars(settings);
    if (groups[i].step != settings.step) return "a group's count of steps differs";
    if (std::memcmp(&scalars[i], &wanted, sizeof wanted) != 0) return "a group's scalars differ";
  }
  return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(statistics_on_the_cpu)

BOOST_AUTO_TEST_CASE(sums_of_any_sizes_equal_the_twins) {
  std::mt19937 random(1);
  const int case_count = std::getenv("SHARDWISE_LONG_TESTS") ? 5000 : 150;
  for (const ElementType type : kGradTypes) {
    for (int i = 0; i < case_count; ++i) {
      std::vector<int64_t> counts(1 + random() % 12);
      for (int64_t& count : counts) count = drawn_count(random);
      if (i % 25 == 0) counts.push_back(2 * kChunkElements + static_cast<int64_t>(random() % 9));
      const std::string problem = problem_of(type, counts, random);
      BOOST_TEST(problem == "", problem);
    }
  }
}

// More chunks than a warp has lanes, and as many as a block adds.
BOOST_AUTO_TEST_CASE(sums_of_many_chunks_equal_the_twins) {
  std::mt19937 random(2);
  for (const ElementType type : kGradTypes) {
    BOOST_TEST(problem_of(type, {35 * kChunkElements + 1, 3}, random) == "");
  }
  constexpr int64_t kMany = 128 * kChunkElements;
  static_assert(!has_many_chunks(chunks_of(kMany)) && has_many_chunks(chunks_of(kMany + 1)));
  const std::vector<int64_t> counts = {3, kMany, kMany + 1, 70000, 3 * kMany, 5};
  BOOST_TEST(problem_of(ElementType::BF16, counts, random) == "");
}

BOOST_AUTO_TEST_CASE(the_control_equals_the_twins) {
  std::mt19937 random(3);
  for (const uint32_t tensors : {0U, 1U, 31U, 255U, 256U, 257U, 1000U}) {
    for (const uint32_t groups : {0U, 1U, 256U, 257U, 600U}) {
      for (int i = 0; i < 4; ++i) {
        const std::string problem = control_problem(tensors, groups, random);
        BOOST_TEST(problem == "", problem << ": " << tensors << " tensors, " << groups);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rates_and_scale_are_written_as_given) {
  for (const uint32_t count : {0U, 1U, 127U, 128U, 129U, 300U}) {
    std::vector<GroupSettings> groups(count);
    std::vector<GroupRates> rates(count);
    for (uint32_t i = 0; i < count; ++i) rates[i] = {1.0 + i, 0.5 * i};
    BOOST_TEST(set_rates(groups.data(), rates.data(), count, nullptr) == cudaSuccess);
    for (uint32_t i = 0; i < count; ++i) {
      BOOST_TEST(groups[i].lr == rates[i].lr);
      BOOST_TEST(groups[i].weight_decay == rates[i].weight_decay);
    }
  }
  StepControl control;
  BOOST_TEST(set_control(&control, ControlSettings{0.25F, 3, true}, nullptr) == cudaSuccess);
  BOOST_TEST(control.inverse_loss_scale == 0.25F);
  BOOST_TEST(control.max_norm == 3);
  BOOST_TEST(control.check_finite == 1U);
}

BOOST_AUTO_TEST_CASE(sources_on_the_device_are_read_where_they_are_named) {
  for (const uint32_t count : {0U, 1U, 255U, 256U, 257U, 600U}) {
    for (const bool has_rates : {false, true}) {
      for (const float* const scale : {static_cast<const float*>(nullptr), &kScale}) {
        std::vector<GroupSettings> groups(count);
        std::vector<GroupRates> rates(count);
        for (uint32_t i = 0; i < count; ++i) rates[i] = {1.0 + i, 0.5 * i};
        for (uint32_t i = 0; i < count; ++i) groups[i].rates_index = count - 1 - i;
        StepControl control;
        control.inverse_loss_scale = 7;
        const DeviceSources sources = {has_rates ? rates.data() : nullptr, scale};
        BOOST_TEST(read_sources({sources, groups.data(), &control, count}, nullptr) == cudaSuccess);
        BOOST_TEST(control.inverse_loss_scale == (scale == nullptr ? 7 : 1 / kScale));
        for (uint32_t i = 0; i < count; ++i) {
          const GroupRates found = {groups[i].lr, groups[i].weight_decay};
          const GroupRates wanted = has_rates ? rates[count - 1 - i] : GroupRates{};
          BOOST_TEST(found.lr == wanted.lr);
          BOOST_TEST(found.weight_decay == wanted.weight_decay);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
