// What a replay is given: understood as it is, or refused with the key.
#include <replay/replay.h>

#include <algorithm>
#include <fstream>

#include "optim/expect_error.h"
#include "optim/step/replay_samples.h"
#include "optim/step/safetensors_file.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(replay_input)

BOOST_AUTO_TEST_CASE(gradients_that_do_not_fit_the_checkpoint_are_corrupt) {
  const Workplace work;
  const NamedTensors all = read_safetensors(kTorch / "expected" / "init_and_grads.safetensors");
  const std::string name = "decoder.final_layernorm.bias";
  const auto expect_corrupt = [&](const std::string& key, auto change) {
    NamedTensors changed = all;
    change(changed);
    const fs::path file = work.folder / "changed.safetensors";
    write_safetensors(file, changed);
    optim::ReplayOptions options = from_init(kTorch);
    options.gradients = file;
    options.output = work.folder / "out";
    expect_error(ckpt::ErrorCode::Corrupt, key, [&] { optim::replay(options); });
    BOOST_TEST(!fs::exists(options.output));
  };
  expect_corrupt("grad1." + name, [&](NamedTensors& t) { t.erase("grad1." + name); });
  expect_corrupt("grad2." + name,
                 [&](NamedTensors& t) { t["grad2." + name] = random_tensor({15}, 1); });
  expect_corrupt("init." + name, [&](NamedTensors& t) { t.erase("init." + name); });
  expect_corrupt("init." + name,
                 [&](NamedTensors& t) { t["init." + name] = random_tensor({16}, 1); });  // not bf16
  expect_corrupt("grad0.nobody",
                 [](NamedTensors& t) { t["grad0.nobody"] = random_tensor({1}, 1); });
  expect_corrupt("", [&](NamedTensors& t) {
    std::erase_if(t, [](const auto& entry) { return entry.first.starts_with("grad"); });
  });
  expect_corrupt("grad2." + name, [&](NamedTensors& t) {  // the middle one of three steps
    std::erase_if(t, [](const auto& entry) { return entry.first.starts_with("grad1."); });
  });
  const std::string odd_keys[] = {"grad4294967295." + name,
                                  "grad01." + name,
                                  "grad-1." + name,
                                  "grad99999999999999999999." + name,
                                  "grad." + name,
                                  "gradx",
                                  "grad0",
                                  "Grad0." + name,
                                  "main_grad." + name,
                                  "init.nobody",
                                  "grad2.nobody"};
  for (const std::string& key : odd_keys) {
    expect_corrupt(key, [&](NamedTensors& t) { t[key] = random_tensor({16}, 1); });
  }
}

// Init, gradients and the state that is expected may be one file.
BOOST_AUTO_TEST_CASE(a_recording_in_one_file_is_understood) {
  const Workplace work;
  NamedTensors all = read_safetensors(kTorch / "expected" / "init_and_grads.safetensors");
  all.merge(read_safetensors(kTorch / "expected" / "state.safetensors"));
  optim::ReplayOptions options = from_init(kTorch);
  options.gradients = options.expect = work.folder / "recording.safetensors";
  write_safetensors(options.gradients, all);
  const optim::ReplayReport report = optim::replay(options);
  BOOST_TEST(report.passed);
  BOOST_TEST(kind_of(report, "step").equal == 20);
}

BOOST_AUTO_TEST_CASE(counts_of_updates_that_are_not_recorded_are_not_compared) {
  const Workplace work;
  NamedTensors state = read_safetensors(kTorch / "expected" / "state.safetensors");
  std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("step."); });
  optim::ReplayOptions options = from_init(kTorch);
  options.expect = work.folder / "state.safetensors";
  write_safetensors(options.expect, state);
  const optim::ReplayReport report = optim::replay(options);
  BOOST_TEST(report.passed);
  BOOST_TEST(std::ranges::count(report.compared, "step", &optim::ComparedKind::kind) == 0);
}

BOOST_AUTO_TEST_CASE(an_expectation_that_lacks_or_adds_a_tensor_is_corrupt) {
  const Workplace work;
  const NamedTensors all = read_safetensors(kTorch / "expected" / "state.safetensors");
  const auto expect_corrupt = [&](const std::string& key, auto change) {
    NamedTensors changed;
    for (const auto& [name, tensor] : all) {
      if (!name.starts_with("step.")) changed[name] = tensor;
    }
    change(changed);
    write_safetensors(work.folder / "state.safetensors", changed);
    optim::ReplayOptions options = from_init(kTorch);
    options.steps = 1;
    options.expect = work.folder / "state.safetensors";
    expect_error(ckpt::ErrorCode::Corrupt, key, [&] { optim::replay(options); });
  };
  const std::string name = "decoder.final_layernorm.bias";
  expect_corrupt("exp_avg." + name, [&](NamedTensors& t) { t.erase("exp_avg." + name); });
  expect_corrupt("momentum_buffer." + name,
                 [&](NamedTensors& t) { t["momentum_buffer." + name] = random_tensor({16}, 1); });
  expect_corrupt("exp_avg." + name,
                 [&](NamedTensors& t) { t["exp_avg." + name] = random_tensor({15}, 1); });
  expect_corrupt("exp_avg." + name, [&](NamedTensors& t) {
    t["exp_avg." + name] = random_tensor({16}, 1).to(at::kBFloat16);
  });
  expect_corrupt("step.nobody", [&](NamedTensors& t) {
    for (const auto& [key, tensor] : all) {
      if (key.starts_with("step.")) t[key] = tensor;
    }
    t["step.nobody"] = random_tensor({}, 1);
  });
  expect_corrupt("zz", [](NamedTensors& t) { t["zz"] = random_tensor({1}, 1); });
  // Counts of some parameters but not of all.
  expect_corrupt("step." + name, [&](NamedTensors& t) {
    for (const auto& [key, tensor] : all) {
      if (key.starts_with("step.") && key != "step." + name) t[key] = tensor;
    }
  });
}

BOOST_AUTO_TEST_CASE(another_state_than_expected_does_not_pass) {
  optim::ReplayOptions options = from_init(kTorch);
  options.steps = 2;  // of the three that led to the expected state
  options.expect = kTorch / "expected" / "state.safetensors";
  const optim::ReplayReport report = optim::replay(options);
  BOOST_TEST(!report.passed);
  for (const optim::ComparedKind& kind : report.compared) BOOST_TEST(!kind.passed, kind.kind);
}

BOOST_AUTO_TEST_CASE(requests_that_make_no_sense_are_refused) {
  const Workplace work;
  const auto refuses = [](ckpt::ErrorCode code, auto change) {
    optim::ReplayOptions options = from_init(kTorch);
    change(options);
    expect_error(code, "", [&] { optim::replay(options); });
  };
  using Options = optim::ReplayOptions;
  const auto invalid = ckpt::ErrorCode::InvalidArgument;
  const auto missing = ckpt::ErrorCode::NotFound;
  refuses(invalid, [](Options& o) { o.steps = 0; });
  refuses(invalid, [](Options& o) { o.steps = 4; });  // three are recorded
  refuses(invalid, [](Options& o) { o.data_parallel = 0; });
  refuses(missing, [](Options& o) { o.gradients = "nowhere"; });
  refuses(missing, [](Options& o) { o.checkpoint = "nowhere"; });
  refuses(missing, [](Options& o) { o.expect = "nowhere"; });
  refuses(missing, [&](Options& o) { o.gradients = work.folder; });  // holds no safetensors
  refuses(ckpt::ErrorCode::AlreadyExists, [&](Options& o) { o.output = work.folder; });
}

BOOST_AUTO_TEST_CASE(recorded_norms_that_are_no_norms_are_corrupt) {
  const Workplace work;
  fs::copy_file(kTorch / "expected" / "init_and_grads.safetensors",
                work.folder / "init_and_grads.safetensors");
  const auto expect_error_for = [&](const std::string& text, ckpt::ErrorCode code,
                                    const std::string& key) {
    std::ofstream(work.folder / "run.json") << text;
    optim::ReplayOptions options = from_init(kTorch);
    options.gradients = work.folder;
    options.recorded_grad_norm = true;
    expect_error(code, key, [&] { optim::replay(options); });
  };
  expect_error_for("{", ckpt::ErrorCode::Corrupt, "");
  expect_error_for("{}", ckpt::ErrorCode::Corrupt, "/steps/0/grad_norm");
  expect_error_for(R"({"steps": [{"grad_norm": 1}, {"grad_norm": -1}]})", ckpt::ErrorCode::Corrupt,
                   "/steps/1/grad_norm");
  fs::remove(work.folder / "run.json");
  optim::ReplayOptions options = from_init(kTorch);
  options.gradients = work.folder;
  options.recorded_grad_norm = true;
  expect_error(ckpt::ErrorCode::NotFound, "", [&] { optim::replay(options); });
}

BOOST_AUTO_TEST_SUITE_END()
