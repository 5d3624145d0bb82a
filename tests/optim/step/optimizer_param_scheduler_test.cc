#include <optim/optimizer_param_scheduler.h>

#include <optim/mixed_precision.h>
#include <cmath>

#include "optim/expect_error.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(optimizer_param_scheduler)

optim::SchedulerSettings settings_of(const std::string& style) {
  optim::SchedulerSettings settings;
  settings.init_lr = 0.001;
  settings.max_lr = 0.01;
  settings.min_lr = 0.002;
  settings.lr_warmup_steps = 10;
  settings.lr_decay_steps = 110;
  settings.lr_decay_style = style;
  settings.start_wd = settings.end_wd = 0.1;
  settings.wsd_decay_steps = 40;
  return settings;
}

// One group without parameters is enough: rates are written to empty groups, too.
std::unique_ptr<optim::FP32Optimizer> empty_optimizer(double wd_mult = 1) {
  optim::OptimizerGroup group;
  group.settings.wd_mult = wd_mult;
  group.rule_config = optim::AdamRule{};
  group.rule = optim::make_rule(group.rule_config);
  std::vector<optim::OptimizerGroup> groups;
  groups.push_back(std::move(group));
  return std::make_unique<optim::FP32Optimizer>(std::move(groups), optim::OptimizerConfig{});
}

// What Megatron-Core 0.16.1's get_lr gives.
BOOST_AUTO_TEST_CASE(rates_follow_their_style) {
  struct Row {
    const char* style;
    const char* wsd_style;
    int64_t num_steps;
    double lr;
  };
  const double cosine30 = 0.002 + 0.5 * (std::cos(M_PI * 0.2) + 1.0) * (0.01 - 0.002);
  const Row rows[] = {
      {"cosine", "", 0, 0.001},  // warmup starts at init_lr
      {"cosine", "", 5, 0.001 + 0.009 * 5 / 10},
      {"cosine", "", 10, 0.001 + 0.009 * 10 / 10},  // its last step
      {"cosine", "", 30, cosine30},
      {"cosine", "", 110, 0.002},
      {"cosine", "", 111, 0.002},  // past the end
      {"linear", "", 60, 0.002 + 0.5 * 0.008},
      {"constant", "", 1000, 0.01},
      {"inverse-square-root", "", 40, 0.01 * std::sqrt(10.0) / std::sqrt(40.0)},
      {"inverse-square-root", "", 109, 0.01 * std::sqrt(10.0) / std::sqrt(109.0)},
      {"WSD", "linear", 70, 0.01},  // stable
      {"WSD", "linear", 90, 0.002 + 0.5 * 0.008},
      {"WSD", "cosine", 90, 0.002 + 0.5 * 0.008},
      {"WSD", "exponential", 90, 0.002 + (2 * std::sqrt(0.5) - 1) * 0.008},
      {"WSD", "minus_sqrt", 80, 0.002 + 0.5 * 0.008},
  };
  for (const Row& row : rows) {
    optim::SchedulerSettings settings = settings_of(row.style);
    settings.lr_wsd_decay_style = row.wsd_style;
    const auto optimizer = empty_optimizer();
    optim::OptimizerParamScheduler scheduler(*optimizer, settings);
    scheduler.step(row.num_steps);
    BOOST_TEST(optimizer->param_groups()[0]->lr == row.lr, boost::test_tools::tolerance(1e-12));
  }
}

// The recorded run of tests/golden: cosine from 0.01 to 0.001 over 120 samples, 12 per step.
BOOST_AUTO_TEST_CASE(recorded_rates_are_the_same_doubles) {
  optim::SchedulerSettings settings;
  settings.max_lr = 0.01;
  settings.min_lr = 0.001;
  settings.lr_decay_steps = 120;
  settings.lr_decay_style = "cosine";
  const auto optimizer = empty_optimizer();
  optim::OptimizerParamScheduler scheduler(*optimizer, settings);
  for (const double recorded :
       {0.010000000000000002, 0.009779754323328192, 0.009140576474687266, 0.008145033635316129}) {
    BOOST_TEST(optimizer->param_groups()[0]->lr == recorded);
    scheduler.step(12);
  }
}

BOOST_AUTO_TEST_CASE(decay_grows_along_its_style_and_is_multiplied_per_group) {
  struct Row {
    const char* style;
    int64_t num_steps;
    double wd;
  };
  const Row rows[] = {{"linear", 0, 0.1},   {"linear", 25, 0.15}, {"linear", 100, 0.3},
                      {"linear", 101, 0.3}, {"cosine", 50, 0.2},  {"cosine", 100, 0.3}};
  for (const Row& row : rows) {
    optim::SchedulerSettings settings = settings_of("constant");
    settings.start_wd = 0.1;
    settings.end_wd = 0.3;
    settings.wd_incr_steps = 100;
    settings.wd_incr_style = row.style;
    const auto optimizer = empty_optimizer(0.5);
    optim::OptimizerParamScheduler scheduler(*optimizer, settings);
    scheduler.step(row.num_steps);
    BOOST_TEST(optimizer->param_groups()[0]->weight_decay == 0.5 * row.wd,
               boost::test_tools::tolerance(1e-12));
  }
}

BOOST_AUTO_TEST_CASE(groups_override_rates_and_decay) {
  const auto optimizer = empty_optimizer();
  optim::ParamGroup& group = optimizer->param_groups()[0]->settings;
  group.max_lr = 0.5;
  group.min_lr = 0.25;
  group.others = {{"start_wd", 0.7}, {"end_wd", 0.7}};
  const optim::OptimizerParamScheduler scheduler(*optimizer, settings_of("constant"));
  BOOST_TEST(scheduler.get_wd(group) == 0.7);
  BOOST_TEST(scheduler.get_lr(group) == 0.001);  // still warming up
}

BOOST_AUTO_TEST_CASE(a_saved_schedule_continues) {
  const auto optimizer = empty_optimizer();
  optim::OptimizerParamScheduler first(*optimizer, settings_of("cosine"));
  first.step(36);
  const double lr = optimizer->param_groups()[0]->lr;
  optim::OptimizerParamScheduler second(*optimizer, settings_of("linear"));
  second.load_state_dict(first.state_dict());
  BOOST_TEST(second.num_steps() == 36);
  BOOST_TEST(optimizer->param_groups()[0]->lr == lr);
}

BOOST_AUTO_TEST_CASE(a_saved_schedule_that_is_refused_changes_nothing) {
  const auto optimizer = empty_optimizer();
  optim::OptimizerParamScheduler scheduler(*optimizer, settings_of("cosine"));
  scheduler.step(36);
  const double lr = optimizer->param_groups()[0]->lr;
  const auto another = empty_optimizer();
  const optim::OptimizerParamScheduler other(*another, settings_of("linear"));
  for (const double steps : {-1.0, 1e300, std::nan("")}) {
    optim::StateDict saved = other.state_dict();
    optim::put(saved, "num_steps", steps);
    expect_error(ckpt::ErrorCode::InvalidArgument, "num_steps",
                 [&] { scheduler.load_state_dict(saved); });
  }
  optim::StateDict lacks = other.state_dict();
  std::erase_if(lacks,
                [](const auto& entry) { return entry.first == optim::StateKey("num_steps"); });
  expect_error(ckpt::ErrorCode::InvalidArgument, "opt_param_scheduler",
               [&] { scheduler.load_state_dict(lacks); });
  scheduler.step(0);
  BOOST_TEST(scheduler.num_steps() == 36);
  BOOST_TEST(optimizer->param_groups()[0]->lr == lr);
}

BOOST_AUTO_TEST_CASE(what_makes_no_schedule_is_refused) {
  const auto refuses = [](ckpt::ErrorCode code, const std::string& key, auto change) {
    optim::SchedulerSettings settings = settings_of("WSD");
    change(settings);
    const auto optimizer = empty_optimizer();
    expect_error(code, key, [&] { optim::OptimizerParamScheduler(*optimizer, settings); });
  };
  using Settings = optim::SchedulerSettings;
  const auto unsupported = ckpt::ErrorCode::Unsupported;
  const auto invalid = ckpt::ErrorCode::InvalidArgument;
  refuses(unsupported, "lr_decay_style", [](Settings& s) { s.lr_decay_style = "step"; });
  refuses(unsupported, "wd_incr_style", [](Settings& s) { s.wd_incr_style = "x"; });
  refuses(unsupported, "lr_wsd_decay_style", [](Settings& s) { s.lr_wsd_decay_style = "x"; });
  refuses(invalid, "max_lr", [](Settings& s) { s.max_lr = 0.001; });
  refuses(invalid, "lr_warmup_init", [](Settings& s) { s.init_lr = 1; });
  refuses(invalid, "lr_decay_steps", [](Settings& s) { s.lr_decay_steps = 0; });
  refuses(invalid, "lr_warmup_steps", [](Settings& s) { s.lr_warmup_steps = 110; });
  refuses(invalid, "end_wd", [](Settings& s) { s.end_wd = 0.2; });
  refuses(invalid, "wsd_decay_steps", [](Settings& s) { s.wsd_decay_steps = 0; });
}

BOOST_AUTO_TEST_SUITE_END()
