#include <replay/trace.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "optim/expect_error.h"
#include "optim/step/safetensors_file.h"
#include "optim/step/tensors.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

const fs::path kSteps = fs::path(SHARDWISE_GOLDEN_DIR) / "steps";

// A folder for changed copies; gone at the end.
struct ChangedTrace {
  test::TemporaryFolder folder;

  // Copies a trace; in its JSON the first `from` becomes `to`.
  fs::path make(const std::string& name, const std::string& from, const std::string& to) const {
    std::ifstream stream(kSteps / (name + ".json"));
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    const size_t at = text.find(from);
    BOOST_REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(folder / (name + ".json")) << text;
    fs::copy_file(kSteps / (name + ".safetensors"), folder / (name + ".safetensors"),
                  fs::copy_options::overwrite_existing);
    return folder / (name + ".json");
  }
};

BOOST_AUTO_TEST_SUITE(trace)

// SOAP's first factors have no full rank: which basis of their null space LAPACK gives depends on
// MKL's code for the processor, and the moments with it. The traces were recorded on AMD's.
bool is_recordings_processor() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
}

std::vector<fs::path> replayable(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto is_of = [&](const char* rule) { return name.starts_with(rule); };
    const bool is_ours = is_of("adam_") || is_of("adamw_") || is_of("muon_") || is_of("sgd_") ||
                         is_of("lion_") || is_of("adaptive_muon_") || is_of("soap_") ||
                         is_of("soapsq_");
    if (is_ours && entry.path().extension() == ".json") found.push_back(entry.path());
  }
  return found;
}

void expect_all_pass(const std::vector<fs::path>& traces, optim::EmergingOptimizers era) {
  for (const fs::path& file : traces) {
    const bool is_soap = file.filename().string().starts_with("soap");
    if (is_soap && !is_recordings_processor()) {
      BOOST_TEST_MESSAGE(file.filename().string() << " was recorded on another processor");
      continue;
    }
    for (const bool from_recorded_state : {false, true}) {
      optim::CheckOptions options;
      options.from_recorded_state = from_recorded_state;
      options.era = era;
      const optim::TraceReport report = optim::check_trace(file, options);
      BOOST_TEST(report.passed, report.name << ": " << report.worst.tensor << " step "
                                            << report.worst.step << " max_scaled "
                                            << report.worst.difference.max_scaled);
      BOOST_TEST(report.steps >= 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(recorded_steps_are_reproduced) {
  const std::vector<fs::path> traces = replayable(kSteps);
  BOOST_TEST(traces.size() == 32U);
  expect_all_pass(traces, optim::EmergingOptimizers::V0_3);
  const std::vector<fs::path> older = replayable(kSteps / "emerging_0.2");
  BOOST_TEST(older.size() == 5U);
  expect_all_pass(older, optim::EmergingOptimizers::V0_2);
}

BOOST_AUTO_TEST_CASE(every_recorded_step_of_the_fixtures_is_reproduced) {
  const fs::path fixtures = fs::path(SHARDWISE_SHARED_DIR) / "fixtures";
  using enum optim::EmergingOptimizers;
  for (const auto& [version, era] :
       {std::pair("golden_steps_eo_v0.2.0", V0_2), {"golden_steps_eo_v0.3.0", V0_3}}) {
    const std::vector<fs::path> traces = replayable(fixtures / version);
    if (traces.empty()) BOOST_TEST_MESSAGE("no " << version << " beside the repository");
    expect_all_pass(traces, era);
  }
}

// Moments are computed without a square root: they are the recorded bits on any processor with FMA.
BOOST_AUTO_TEST_CASE(moments_of_adam_are_equal_bit_for_bit) {
  for (const char* const name : {"adamw_decoupled_b2_0.95", "adamw_decoupled_b2_0.999"}) {
    optim::CheckOptions options;
    options.from_recorded_state = true;  // an element that a square root moved stays its own
    const optim::TraceReport report =
        optim::check_trace(kSteps / (std::string(name) + ".json"), options);
    BOOST_TEST(report.worst.tensor.starts_with("param."), report.worst.tensor);
  }
}

// torch's fused kernel takes the processor's square root: all bits are the recorded ones.
BOOST_AUTO_TEST_CASE(steps_of_torchs_fused_kernel_are_equal_bit_for_bit) {
  for (const char* const name : {"adamw_fused_b2_0.999", "adam_fused_coupled_b2_0.95"}) {
    const optim::TraceReport report = optim::check_trace(kSteps / (std::string(name) + ".json"),
                                                         {.tolerance = optim::Tolerance{0, 0}});
    BOOST_TEST(report.passed, report.worst.tensor);
  }
}

BOOST_AUTO_TEST_CASE(a_wrong_coefficient_is_noticed) {
  const ChangedTrace changed;
  struct Row {
    const char *trace, *from, *to;
  };
  const Row rows[] = {
      {"adamw_decoupled_b2_0.95", "   0.95", "   0.951"},
      {"adamw_decoupled_b2_0.999", "\"eps\": 1e-08", "\"eps\": 2e-08"},
      {"adam_coupled_b2_0.95", "torch.optim.Adam", "torch.optim.AdamW"},
      {"adamw_fused_b2_0.999", "   0.9,", "   0.901,"},
      {"muon_quintic_ns7", "\"num_ns_steps\": 7", "\"num_ns_steps\": 6"},
      {"muon_cans_ns5", "\"coefficient_type\": \"cans\"", "\"coefficient_type\": \"aol\""},
      {"muon_shape_scaling_plain", "\"shape_scaling\"", "\"unit_rms_norm\""},
      {"muon_split_qkv_nesterov", "\"nesterov\": true", "\"nesterov\": false"},
      {"muon_prec_medium_bf16_split_qkv", "\"split_qkv\": true", "\"split_qkv\": false"},
      {"muon_extra_scale_0.2", "\"extra_scale_factor\": 0.2", "\"extra_scale_factor\": 0.201"},
      {"sgd_mom0.9_wd0.1", "\"momentum\": 0.9", "\"momentum\": 0.91"},
      {"lion_decoupled", "0.98", "0.981"},
      {"lion_l2", "\"l2\"", "\"palm\""},
      {"muon_l2_nesterov", "\"use_decoupled_weight_decay\": false",
       "\"use_decoupled_weight_decay\": true"},
      {"adaptive_muon_namo_spectral_plain", "\"beta2\": 0.95", "\"beta2\": 0.951"},
      {"adaptive_muon_adamuon_spectral_nesterov", "\"beta2\": 0.95", "\"beta2\": 0.951"},
      {"soap_kl_qr_nesterov", "\"shampoo_beta\": 0.95", "\"shampoo_beta\": 0.951"},
      {"soap_std_qr_clip", "\"max_update_rms\": 0.5", "\"max_update_rms\": 0.6"},
      {"soap_std_qr_pi2_nobias", "\"power_iter_steps\": 2", "\"power_iter_steps\": 1"},
  };
  for (const Row& row : rows) {
    BOOST_TEST(!optim::check_trace(changed.make(row.trace, row.from, row.to)).passed,
               row.trace << " with " << row.to);
  }
}

BOOST_AUTO_TEST_CASE(a_tolerance_of_ones_own_replaces_the_bound) {
  const fs::path file = kSteps / "muon_quintic_ns7.json";
  optim::CheckOptions options;
  options.tolerance = optim::Tolerance{1e-5, 0};
  BOOST_TEST(optim::check_trace(file, options).passed);
  options.tolerance = optim::Tolerance{1e-9, 0};
  BOOST_TEST(!optim::check_trace(file, options).passed);
}

BOOST_AUTO_TEST_CASE(other_optimizers_are_refused_by_name) {
  const ChangedTrace changed;
  const fs::path file =
      changed.make("lion_l2", "emerging_optimizers Lion", "emerging_optimizers PSGD");
  expect_error(ckpt::ErrorCode::Unsupported, "class", [&] { optim::validate_trace(file); });
}

BOOST_AUTO_TEST_CASE(a_trace_of_one_release_is_no_trace_of_the_other) {
  optim::CheckOptions options;
  options.era = optim::EmergingOptimizers::V0_2;
  BOOST_TEST(
      !optim::check_trace(kSteps / "adaptive_muon_adamuon_spectral_nesterov.json", options).passed);
  expect_error(ckpt::ErrorCode::Unsupported, "adaptive_muon_moment2_method", [&] {
    optim::check_trace(kSteps / "adaptive_muon_namo_spectral_plain.json", options);
  });
}

BOOST_AUTO_TEST_CASE(files_that_are_no_traces_are_refused) {
  const fs::path manifest =
      fs::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dp2" / "manifest.json";
  expect_error(ckpt::ErrorCode::Unsupported, "", [&] { optim::check_trace(manifest); });
  expect_error(ckpt::ErrorCode::NotFound, "", [] { optim::check_trace(kSteps / "none.json"); });
  expect_error(ckpt::ErrorCode::Corrupt, "", [] { optim::check_trace(kSteps / "README.md"); });
}

BOOST_AUTO_TEST_CASE(a_trace_that_contradicts_its_tensors_is_corrupt) {
  const ChangedTrace changed;
  const auto corrupt = ckpt::ErrorCode::Corrupt;
  struct Row {
    const char *from, *to, *key;
  };
  const Row rows[] = {
      {"\"w16x8\": [\n   16,", "\"w16x8\": [\n   17,", "init.w16x8"},
      {"\"w16x8\"", "\"w16x9\"", "init.w16x9"},
      {"16,\n   8", "16,\n   -8", "params"},
      {"\"lr\": 0.01", "\"lr\": \"x\"", "lr"},
      {"\"betas\": [\n   0.9,", "\"betas\": [", "betas"},
      {"\"eps\"", "\"eps2\"", "eps"},
  };
  for (const Row& row : rows) {
    expect_error(corrupt, row.key, [&] {
      optim::check_trace(changed.make("adamw_decoupled_b2_0.95", row.from, row.to));
    });
  }
}

// What a trace says is taken as it is written: nothing is converted, nothing is skipped.
BOOST_AUTO_TEST_CASE(a_trace_that_says_what_makes_no_sense_is_refused_with_the_field) {
  const ChangedTrace changed;
  struct Row {
    const char *trace, *from, *to, *key;
    ckpt::ErrorCode code = ckpt::ErrorCode::Corrupt;
  };
  const auto unsupported = ckpt::ErrorCode::Unsupported;
  const char* const adam = "adamw_decoupled_b2_0.95";
  const char* const muon = "muon_split_qkv_nesterov";
  const Row rows[] = {
      {adam, "\"eps\": 1e-08", "\"eps\": -1", "eps"},
      {adam, "\"eps\": 1e-08", "\"eps\": \"1e-08\"", "eps"},
      {adam, "\"eps\": 1e-08", "\"eps\": true", "eps"},
      {adam, "\"eps\": 1e-08", "\"eps\": null", "eps"},
      {adam, "\"eps\": 1e-08", "\"eps\": 1e-08, \"eps\": 1", "eps"},
      {adam, "\"eps\": 1e-08", "\"eps\": 1e-08, \"amsgrad\": true", "amsgrad", unsupported},
      {adam, "\"qkv_params\"", "\"unknown_field\": 1, \"qkv_params\"", "unknown_field",
       unsupported},
      {adam, "\"lr\": 0.01", "\"lr\": -0.01", "lr"},
      {adam, "\"weight_decay\": 0.1", "\"weight_decay\": -0.1", "weight_decay"},
      {adam, "   0.95", "   1.0", "betas"},
      {adam, "   0.95", "   -0.95", "betas"},
      {adam, "   0.95", "   \"0.95\"", "betas"},
      {adam, "   0.95", "   0.95, 0.9", "betas"},
      {adam, "\"scalars\": {}", "\"scalars\": {\"step0.x.b16\": 1}", "scalars", unsupported},
      {adam, "\"scalars\": {}", "\"scalars\": []", "scalars"},
      {adam, "\"qkv_params\": []", "\"qkv_params\": \"w16x8\"", "qkv_params"},
      {adam, "\"qkv_params\": []", "\"qkv_params\": [\"nobody\"]", "qkv_params"},
      {adam, "16,\n   8", "16.0,\n   8", "params"},
      {adam, "16,\n   8", "0,\n   8", "params"},
      {adam, "\"params\": {", "\"params\": {}, \"others\": {", "params"},
      {adam, "\"name\": \"adamw_decoupled_b2_0.95\"", "\"name\": 1", "name"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 5.9", "num_ns_steps"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 5.0", "num_ns_steps"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 0", "num_ns_steps"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 101", "num_ns_steps"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 1000000000", "num_ns_steps"},
      {muon, "\"num_ns_steps\": 5", "\"num_ns_steps\": 18446744073709551615", "num_ns_steps"},
      {muon, "\"nesterov\": true", "\"nesterov\": 1", "nesterov"},
      {muon, "\"momentum\": 0.95", "\"momentum\": 1.5", "momentum"},
      {muon, "\"extra_scale_factor\": 1.0", "\"extra_scale_factor\": \"1\"", "extra_scale_factor"},
      {muon, "\"quintic\"", "\"cubic\"", "coefficient_type", unsupported},
      {muon, "   4,\n   2,\n   2", "   -1,\n   2,\n   3", "qkv_split_shapes"},
      {muon, "   4,\n   2,\n   2", "   4,\n   2", "qkv_split_shapes"},
      {muon, "   4,\n   2,\n   2", "   4,\n   2,\n   3", "params"},  // 24 rows are no multiple of 9
      {muon, "\"split_qkv\": true", "\"split_qkv\": \"yes\"", "split_qkv"},
      {"lion_l2", "\"l2\"", "\"l3\"", "weight_decay_method", unsupported},
      {"sgd_mom0.9_wd0.1", "\"momentum\": 0.9", "\"momentum\": 0.9, \"dampening\": 0.5",
       "dampening", unsupported},
  };
  for (const Row& row : rows) {
    BOOST_TEST_CONTEXT(row.trace << " with " << row.to) {
      expect_error(row.code, row.key,
                   [&] { optim::validate_trace(changed.make(row.trace, row.from, row.to)); });
    }
  }
}

BOOST_AUTO_TEST_CASE(a_trace_has_every_tensor_of_every_step_and_no_other) {
  const ChangedTrace changed;
  const std::string name = "adamw_decoupled_b2_0.95";
  const fs::path json_file = changed.make(name, "", "");
  const fs::path tensors_file = changed.folder / (name + ".safetensors");
  const NamedTensors all = read_safetensors(tensors_file);
  struct Row {
    const char* key;
    std::function<void(NamedTensors&)> change;
  };
  const Row rows[] = {
      {"init.b16", [](auto& t) { t.erase("init.b16"); }},
      {"grad1.b16", [](auto& t) { t.erase("grad1.b16"); }},
      {"grad2.b16",
       [](auto& t) { std::erase_if(t, [](auto& e) { return e.first.starts_with("grad1."); }); }},
      {"grad3.b16",
       [](auto& t) {
         t["grad3.w8x16"] = random_tensor({8, 16}, 1);
       }},
      {"grad01.b16", [](auto& t) { t["grad01.b16"] = random_tensor({16}, 1); }},
      {"grad0.nobody", [](auto& t) { t["grad0.nobody"] = random_tensor({16}, 1); }},
      {"step0.param.b16", [](auto& t) { t.erase("step0.param.b16"); }},
      {"step0.exp_avg.b16", [](auto& t) { t.erase("step0.exp_avg.b16"); }},
      {"step0.exp_avg.b16",
       [](auto& t) { t["step0.exp_avg.b16"] = random_tensor({16}, 1).to(at::kBFloat16); }},
      {"step0.max_exp_avg_sq.b16",
       [](auto& t) { t["step0.max_exp_avg_sq.b16"] = random_tensor({16}, 1); }},
      {"step3.param.b16", [](auto& t) { t["step3.param.b16"] = random_tensor({16}, 1); }},
      {"step1.step.b16", [](auto& t) { t["step1.step.b16"] = t["step0.step.b16"]; }},
      {"step1.step.b16", [](auto& t) { t["step1.step.b16"] = random_tensor({16}, 1); }},
  };
  for (const Row& row : rows) {
    NamedTensors tensors = all;
    row.change(tensors);
    write_safetensors(tensors_file, tensors);
    expect_error(ckpt::ErrorCode::Corrupt, row.key, [&] { optim::check_trace(json_file); });
  }
  NamedTensors without_counts = all;
  std::erase_if(without_counts,
                [](auto& entry) { return entry.first.find(".step.") != std::string::npos; });
  write_safetensors(tensors_file, without_counts);
  BOOST_TEST(optim::check_trace(json_file).passed);
}

BOOST_AUTO_TEST_SUITE_END()
