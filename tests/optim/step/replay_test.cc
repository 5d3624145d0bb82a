#include <replay/replay.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "optim/step/replay_samples.h"
#include "optim/step/safetensors_file.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(replay)

nlohmann::json recorded_run(const fs::path& sample) {
  std::ifstream stream(sample / "expected" / "run.json");
  return nlohmann::json::parse(stream);
}

BOOST_AUTO_TEST_CASE(recorded_steps_with_recorded_norms_give_the_recorded_state) {
  for (const fs::path& sample : {kTorch, kTorchDist}) {
    optim::ReplayOptions options = from_init(sample);
    options.recorded_grad_norm = true;
    options.expect = sample / "expected" / "state.safetensors";
    const optim::ReplayReport report = optim::replay(options);
    BOOST_TEST(report.passed);
    BOOST_TEST(report.steps.size() == 3U);
    for (const char* const kind : {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"}) {
      BOOST_TEST(kind_of(report, kind).equal == kind_of(report, kind).tensors, kind);
    }
    BOOST_TEST(kind_of(report, "model").tensors == 29);
    BOOST_TEST(kind_of(report, "fp32_param").tensors == 29);
    BOOST_TEST(kind_of(report, "momentum_buffer").tensors == 9);
    BOOST_TEST(kind_of(report, "exp_avg").tensors == 20);
  }
}

BOOST_AUTO_TEST_CASE(norms_zeros_and_rates_are_the_recorded_ones) {
  const optim::ReplayReport report = optim::replay(from_init(kTorch));
  const nlohmann::json recorded = recorded_run(kTorch)["steps"];
  BOOST_REQUIRE(report.steps.size() == recorded.size());
  for (size_t step = 0; step < recorded.size(); ++step) {
    const double norm = recorded[step]["grad_norm"];
    BOOST_TEST(std::abs(report.steps[step].grad_norm - norm) <= 2e-7 * norm);
    BOOST_TEST(report.steps[step].num_zeros == recorded[step]["num_zeros"].get<int64_t>());
    BOOST_TEST(report.steps[step].lr == recorded[step]["lr_per_group"][0].get<double>());
  }
}

BOOST_AUTO_TEST_CASE(a_norm_of_our_own_stays_within_its_tolerances) {
  optim::ReplayOptions options = from_init(kTorchDist);
  options.expect = kTorchDist / "expected" / "state.safetensors";
  BOOST_TEST(optim::replay(options).passed);
}

// --- The recorded masters, element by element ---

// Every value that p can have after a step whose square root is right, or one unit off either way.
std::set<float> after_step(const std::set<float>& before, float m, float v,
                           const std::array<float, 4>& scalars) {
  const auto [shrink, root2, eps, step_size] = scalars;
  const float root = std::sqrt(v);
  std::set<float> after;
  for (const float p : before) {
    for (const float r : {std::nextafter(root, 0.0F), root, std::nextafter(root, 1e9F)}) {
      after.insert(p * shrink + step_size * m / (r / root2 + eps));
    }
  }
  return after;
}

struct RecordedStep {
  double lr, clip;
};

size_t unexplained(const NamedTensors& init_and_grads, const NamedTensors& state,
                   const std::string& name, const std::vector<RecordedStep>& steps) {
  const at::Tensor init = init_and_grads.at("init." + name);
  const std::vector<float> start = values_of(init.to(at::kFloat));
  const std::vector<float> recorded = values_of(state.at("fp32_param." + name));
  const double decay = init.dim() == 2 ? 0.1 : 0.0;
  std::vector<std::vector<float>> grads;
  for (size_t k = 0; k < steps.size(); ++k) {
    grads.push_back(values_of(init_and_grads.at("grad" + std::to_string(k) + "." + name)));
  }
  size_t count = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    std::set<float> possible = {start[i]};
    float m = 0, v = 0;
    for (size_t k = 0; k < steps.size(); ++k) {
      const float g = grads[k][i] * static_cast<float>(steps[k].clip);
      m = std::fma(static_cast<float>(1 - 0.9), g - m, m);
      v = std::fma(static_cast<float>(1 - 0.999) * g, g, v * 0.999F);
      const auto step = static_cast<double>(k + 1);
      possible = after_step(possible, m, v,
                            {static_cast<float>(1 - steps[k].lr * decay),
                             static_cast<float>(std::pow(1 - std::pow(0.999, step), 0.5)), 1e-8F,
                             static_cast<float>(-(steps[k].lr / (1 - std::pow(0.9, step))))});
    }
    if (!possible.contains(recorded[i])) ++count;
  }
  return count;
}

// The recording machine's library does not round every square root correctly, ours may differ: the
// only freedom that the recorded masters need, in each step and element, is one unit in the last
// place of the square root.
BOOST_AUTO_TEST_CASE(recorded_masters_are_explained_by_the_rounding_of_square_roots) {
  const NamedTensors init_and_grads =
      read_safetensors(kTorch / "expected" / "init_and_grads.safetensors");
  const NamedTensors state = read_safetensors(kTorch / "expected" / "state.safetensors");
  std::vector<RecordedStep> steps;
  const nlohmann::json run = recorded_run(kTorch);
  for (const nlohmann::json& step : run["steps"]) {
    const double norm = step["grad_norm"];
    steps.push_back({step["lr_per_group"][0], std::min(1.0, 1.0 / (norm + 1e-6))});
  }
  size_t params = 0;
  for (const auto& [key, tensor] : state) {
    if (!key.starts_with("exp_avg.")) continue;
    const std::string name = key.substr(8);
    BOOST_TEST(unexplained(init_and_grads, state, name, steps) == 0U, name);
    ++params;
  }
  BOOST_TEST(params == 20U);
}

// --- Layouts, output ---

BOOST_AUTO_TEST_CASE(the_result_does_not_depend_on_format_or_layout) {
  const Workplace work;
  optim::ReplayOptions options = from_init(kTorch);
  options.output = work.folder / "first";
  optim::replay(options);
  for (const fs::path& sample : {kTorch, kTorchDist}) {
    for (const uint32_t ranks : {1U, 2U, 3U, 4U, 31U}) {
      optim::ReplayOptions again = from_init(sample);
      again.data_parallel = ranks;
      again.expect = options.output;
      again.tolerance = optim::Tolerance{0, 0};
      const optim::ReplayReport report = optim::replay(again);
      BOOST_TEST_CONTEXT(sample.filename() << " with " << ranks << " ranks") {
        BOOST_TEST(report.passed);
        for (const optim::ComparedKind& kind : report.compared) {
          BOOST_TEST(kind.equal == kind.tensors, kind.kind);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_after_a_save_continue_as_if_there_had_been_none) {
  const Workplace work;
  NamedTensors last_step;
  for (const auto& [key, tensor] :
       read_safetensors(kTorch / "expected" / "init_and_grads.safetensors")) {
    if (key.starts_with("grad2.")) last_step["grad0." + key.substr(6)] = tensor;
  }
  write_safetensors(work.folder / "last.safetensors", last_step);

  optim::ReplayOptions whole = from_init(kTorch);
  whole.output = work.folder / "three";
  optim::replay(whole);
  optim::ReplayOptions two = from_init(kTorch);
  two.steps = 2;
  two.data_parallel = 3;
  two.output = work.folder / "two";
  optim::replay(two);

  optim::ReplayOptions third;
  third.checkpoint = two.output;
  third.gradients = work.folder / "last.safetensors";
  third.expect = whole.output;
  third.tolerance = optim::Tolerance{0, 0};
  const optim::ReplayReport report = optim::replay(third);
  BOOST_TEST(report.passed);
  BOOST_TEST(report.first_iteration == 2);
  BOOST_TEST(report.data_parallel == 3U);
  BOOST_TEST(report.steps[0].lr == 0.009140576474687266);
}

BOOST_AUTO_TEST_CASE(the_output_of_the_recorded_steps_is_the_recorded_checkpoint) {
  const Workplace work;
  optim::ReplayOptions options = from_init(kTorchDist);
  options.recorded_grad_norm = true;
  options.output = work.folder / "out";
  optim::replay(options);
  const optim::ReplayOptions compare = [&] {
    optim::ReplayOptions same = options;
    same.output.clear();
    same.expect = kTorchDist / "ckpt";
    return same;
  }();
  BOOST_TEST(optim::replay(compare).passed);
  const auto tracker = work.folder / "out" / "latest_checkpointed_iteration.txt";
  std::string iteration;
  std::ifstream(tracker) >> iteration;
  BOOST_TEST(iteration == "3");
}

// The FusedAdam layout (step in the group, other roundings) and further sizes.
BOOST_AUTO_TEST_CASE(recorded_states_of_the_fixtures_are_reproduced) {
  const fs::path fixtures = SHARDWISE_FIXTURES_DIR;
  for (const char* const name :
       {"lw_muon_bf16_torch_dp1", "lw_muon_bf16_torch_dp4", "lw_muon_bf16_torch_dist_dp1",
        "lw_muon_bf16_torch_dist_dp4", "lw_muon_bf16_torch_dist_dp2_no_fully_parallel_save",
        "lw_muon_bf16_fusedadam_layout_torch_dp2", "lw_muon_bf16_fusedadam_layout_torch_dist_dp2",
        "lw_muon_bf16_fusedadam_layout_torch_dist_dp4"}) {
    for (const bool recorded_norm : {true, false}) {
      optim::ReplayOptions options = from_init(fixtures / name);
      options.recorded_grad_norm = recorded_norm;
      options.expect = fixtures / name / "expected" / "state.safetensors";
      const optim::ReplayReport report = optim::replay(options);
      for (const optim::ComparedKind& kind : report.compared) {
        BOOST_TEST(kind.passed, name << " " << kind.kind << " " << kind.worst_tensor << " max_abs "
                                     << kind.worst.max_abs);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
