// What a replay says of a recorded step that is another one.
#include <replay/bisect.h>
#include <replay/replay.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include <algorithm>
#include <map>
#include <string>

#include "optim/expect_error.h"
#include "optim/step/replay_samples.h"
#include "optim/step/safetensors_file.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(replay_divergence)

using Arguments = std::map<std::string, std::string>;
using optim::StepPart;

optim::ReplayOptions one_step() {
  optim::ReplayOptions options;
  options.checkpoint = kTorch / "ckpt";
  options.gradients = kTorch / "expected";
  options.steps = 1;
  return options;
}

// The checkpoint behind one step that a run with these arguments took.
fs::path stepped(const Workplace& work, const Arguments& arguments) {
  optim::ReplayOptions options = one_step();
  options.overrides = arguments;
  options.output = work.folder / ("stepped" + std::to_string(arguments.size()));
  options.force = true;
  optim::replay(options);
  return options.output;
}

optim::Divergence divergence_from(const Workplace& work, const Arguments& arguments) {
  optim::ReplayOptions options = one_step();
  options.expect = stepped(work, arguments);
  const optim::ReplayReport report = optim::replay(options);
  BOOST_REQUIRE(report.divergence.has_value());
  return *report.divergence;
}

const optim::PartOfStep& part_of(const optim::Divergence& divergence, StepPart part) {
  return *std::ranges::find(divergence.parts, part, &optim::PartOfStep::part);
}

BOOST_AUTO_TEST_CASE(the_same_step_is_identical) {
  const Workplace work;
  optim::ReplayOptions options = one_step();
  options.expect = stepped(work, {});
  BOOST_TEST(!optim::replay(options).divergence.has_value());
}

BOOST_AUTO_TEST_CASE(the_part_that_another_run_computed_otherwise_is_named) {
  const Workplace work;
  struct Case {
    Arguments arguments;
    StepPart part;
    double recorded;  // 0: not compared
  };
  const Case cases[] = {
      {{{"clip_grad", "0"}}, StepPart::Clip, 1},
      {{{"clip_grad", "0.5"}}, StepPart::Norm, 0},
      {{{"muon_momentum", "0.8"}}, StepPart::Momentum, 0},
      {{{"adam_beta2", "0.99"}}, StepPart::Momentum, 0},
      {{{"muon_num_ns_steps", "7"}}, StepPart::Orthogonalization, 0},
      {{{"weight_decay", "0.3"}}, StepPart::Decay, 0},
      {{{"lr", "0.02"}}, StepPart::Update, 0},
      {{{"adam_eps", "0.001"}}, StepPart::Update, 0},
  };
  for (const Case& one : cases) {
    const optim::Divergence found = divergence_from(work, one.arguments);
    const std::string& argument = one.arguments.begin()->first;
    BOOST_TEST_REQUIRE(found.first.has_value(), argument);
    BOOST_TEST(name(*found.first) == name(one.part), argument);
    BOOST_TEST(!found.is_rounding, argument);
    const optim::PartOfStep& part = part_of(found, one.part);
    BOOST_TEST(part.tensors > 0, argument);
    if (one.recorded == 0) continue;
    BOOST_TEST_REQUIRE(part.recorded.has_value(), argument);
    BOOST_TEST(*part.recorded == one.recorded, boost::test_tools::tolerance(1e-5));
  }
}

BOOST_AUTO_TEST_CASE(a_rate_and_a_norm_are_read_off_the_recorded_tensors) {
  const Workplace work;
  const optim::Divergence rate = divergence_from(work, {{"weight_decay", "0.3"}});
  const optim::PartOfStep& decay = part_of(rate, StepPart::Decay);
  BOOST_TEST(*decay.recorded == 3 * *decay.ours, boost::test_tools::tolerance(1e-3));
  const optim::Divergence norm = divergence_from(work, {{"clip_grad", "0.5"}});
  const optim::PartOfStep& found = part_of(norm, StepPart::Norm);
  BOOST_TEST(*found.recorded == 2 * *found.ours, boost::test_tools::tolerance(1e-5));
}

BOOST_AUTO_TEST_CASE(a_weight_that_is_not_its_rounded_master_was_cast_otherwise) {
  const Workplace work;
  optim::ReplayOptions options = one_step();
  options.expect = stepped(work, {});
  const optim::OpenedTraining checkpoint = optim::open_checkpoint(options.expect);
  NamedTensors tensors;
  const optim::FiledState state = optim::read_training_state(checkpoint);
  for (const optim::TrainedParam& param : state.params) {
    const std::string& name = param.info.name;
    tensors["model." + name] = optim::load_tensor(checkpoint, *param.weight);
    tensors["master." + name] = optim::load_tensor(checkpoint, *param.master);
    for (const auto& [kind, value] : param.states) {
      tensors[kind + "." + name] = optim::load_tensor(checkpoint, *value);
    }
  }
  const std::string name = "decoder.final_layernorm.weight";
  at::Tensor& weight = tensors.at("model." + name);
  weight[0].add_(0.25);
  options.expect = work.folder / "state.safetensors";
  write_safetensors(options.expect, tensors);
  const optim::ReplayReport report = optim::replay(options);
  const optim::Divergence& found = report.divergence.value();
  BOOST_TEST(found.kind == "model");
  BOOST_TEST(found.tensor == name);
  BOOST_TEST(found.spread.ulps.front().elements == weight.numel() - 1);
  BOOST_TEST(found.spread.cosine < 1);
  BOOST_TEST((found.first == StepPart::Cast));
  BOOST_TEST(part_of(found, StepPart::Cast).recorded.value() == 1);
}

BOOST_AUTO_TEST_CASE(of_several_steps_no_part_is_named) {
  const Workplace work;
  optim::ReplayOptions options = one_step();
  options.steps = 2;
  options.expect = stepped(work, {{"lr", "0.02"}});
  const optim::Divergence found = optim::replay(options).divergence.value();
  BOOST_TEST(found.parts.empty());
  BOOST_TEST(!found.why_no_parts.empty());
}

BOOST_AUTO_TEST_CASE(the_argument_that_explains_a_difference_is_found) {
  const Workplace work;
  optim::ReplayOptions options = one_step();
  options.expect = stepped(work, {{"adam_beta2", "0.99"}, {"lr", "0.02"}});
  Arguments other = {{"adam_beta2", "0.99"}, {"lr", "0.02"}, {"clip_grad", "1"}};
  const optim::BisectReport report = optim::bisect(options, other);
  BOOST_TEST(report.is_explained);
  BOOST_TEST((report.arguments == std::vector<std::string>{"adam_beta2", "lr"}));
  other.erase("lr");
  BOOST_TEST(!optim::bisect(options, other).is_explained);
}

BOOST_AUTO_TEST_CASE(a_schedule_is_made_of_arguments_that_are_given) {
  const auto rate = [](const Arguments& arguments) {
    optim::ReplayOptions options = one_step();
    options.overrides = arguments;
    return optim::replay(options).steps.front().lr;
  };
  const auto near = boost::test_tools::tolerance(1e-12);  // rates from 0.01 to 0.001 in 10 steps
  BOOST_TEST(rate({{"lr_decay_style", "\"constant\""}}) == 0.01, near);
  BOOST_TEST(rate({{"lr_decay_style", "\"linear\""}}) == 0.01 - 0.3 * 0.009, near);
  BOOST_TEST(rate({{"lr_decay_style", "\"linear\""}, {"lr_decay_iters", "6"}}) == 0.0055, near);
  BOOST_TEST(rate({{"lr_decay_style", "\"WSD\""},
                   {"lr_wsd_decay_style", "\"linear\""},
                   {"lr_wsd_decay_iters", "9"}}) == 0.001 + 0.009 * 7 / 9,
             near);
  BOOST_TEST(rate({{"lr_warmup_iters", "5"}, {"lr", "0.02"}}) == 0.02 * 3 / 5, near);
}

BOOST_AUTO_TEST_CASE(an_arithmetic_of_adam_is_given_by_its_name) {
  const Workplace work;
  optim::ReplayOptions options = one_step();
  options.expect = stepped(work, {});
  options.tolerance = optim::Tolerance{0, 0};
  options.overrides = {{"adam_arithmetic", "\"torch\""}};
  BOOST_TEST(!optim::replay(options).divergence.has_value());
  for (const char* const name : {"\"fused_adam\"", "\"transformer_engine\"", "\"fused\""}) {
    options.overrides = {{"adam_arithmetic", name}};
    BOOST_TEST(optim::replay(options).divergence.has_value(), name);
  }
}

BOOST_AUTO_TEST_CASE(arguments_that_decide_no_step_are_refused) {
  struct Case {
    const char *argument, *value, *key;
  };
  const Case cases[] = {{"num_layers", "2", "num_layers"},
                        {"optimizer", "\"adam\"", "optimizer"},
                        {"lr", "[1]", "lr"},
                        {"lr", "\"high\"", "args.lr"},
                        {"lr_warmup_samples", "5", "lr_warmup_samples"},
                        {"adam_arithmetic", "\"exact\"", "adam_arithmetic"}};
  for (const Case& one : cases) {
    optim::ReplayOptions options = one_step();
    options.overrides = {{one.argument, one.value}};
    expect_error(ckpt::ErrorCode::InvalidArgument, one.key, [&] { optim::replay(options); });
  }
}

BOOST_AUTO_TEST_SUITE_END()
