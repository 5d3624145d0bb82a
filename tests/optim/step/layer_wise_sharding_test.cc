
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "support/temporary_folder.h"

// What holds between processes, beyond the equal bits of layer_wise_test.cc.
BOOST_AUTO_TEST_SUITE(layer_wise_sharding)

using optim::OptimizerConfig;

struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

// Elementwise rules and the norm; LibTorch's products for Muon may differ.
BOOST_AUTO_TEST_CASE(results_of_elementwise_rules_do_not_depend_on_threads) {
  for (const char* const rule : {"adam", "sgd", "lion"}) {
    Run run;
    run.config.optimizer = rule;
    run.make_model = [] {
      return std::vector<optim::Param>{bf16_matrix("a", 1024, 1024), bf16_matrix("b", 700, 1030),
                                       bf16_matrix("c", 40, 3001)};
    };
    std::vector<Outcome> outcomes;
    for (const int count : {1, 2, 3}) {
      const Threads threads(count);
      outcomes.push_back(run_layout({}, run).front());
      expect_same(outcomes.back(), outcomes.front());
    }
  }
}

// A configuration's states in fewer bits do not depend on the layout either.
BOOST_AUTO_TEST_CASE(precision_aware_results_do_not_depend_on_the_layout) {
  const auto change = [](const std::function<void(OptimizerConfig&)>& f) {
    OptimizerConfig config = muon_config();
    config.use_precision_aware_optimizer = true;
    f(config);
    return config;
  };
  const OptimizerConfig configs[] = {
      change([](auto&) {}),  // remainders
      change([](auto& c) { c.exp_avg_dtype = c.exp_avg_sq_dtype = ckpt::DType::BFloat16; }),
      change([](auto& c) {
        c.exp_avg_dtype = ckpt::DType::UInt8, c.exp_avg_sq_dtype = ckpt::DType::Float16;
        c.main_params_dtype = ckpt::DType::Float16;
      })};
  for (const OptimizerConfig& config : configs) {
    Run run = run_of_layers(1);
    run.config = config;
    const Outcome expected = run_layout({}, run).front();
    for (const Layout& layout :
         {Layout{2, 2}, Layout{3, 3, optim::OwnershipPolicy::Balanced, true, false, 200}}) {
      for (const Outcome& outcome : run_layout(layout, run)) expect_same(outcome, expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(remainders_are_masters_to_the_bit) {
  Run run = run_of_layers(1);
  const Outcome plain = run_layout({}, run).front();
  run.config.use_precision_aware_optimizer = true;
  const Outcome remainders = run_layout({}, run).front();
  for (const auto& [name, tensor] : plain.tensors) {
    if (name.starts_with("model.")) continue;  // ties round away from zero there
    BOOST_TEST(same_bits(tensor, remainders.tensors.at(name)), name);
  }
}

BOOST_AUTO_TEST_CASE(states_of_fewer_bits_stay_near_those_of_fp32) {
  Run run = run_of_layers(1);
  const Outcome plain = run_layout({}, run).front();
  run.config.use_precision_aware_optimizer = true;
  run.config.exp_avg_dtype = run.config.exp_avg_sq_dtype = ckpt::DType::Float16;
  const Outcome half = run_layout({}, run).front();
  for (const auto& [name, tensor] : plain.tensors) {
    if (name.starts_with("model.") || name.starts_with("master.")) continue;
    const double largest = tensor.abs().max().item<double>();
    BOOST_TEST(largest_difference(tensor, half.tensors.at(name)) <= 2e-3 * largest, name);
    BOOST_TEST(!same_bits(tensor, half.tensors.at(name)), name);
  }
}

// --- loss scaling ---

std::vector<optim::Param> fp16_model() {
  std::vector<optim::Param> params = small_model(1, 4);
  for (optim::Param& param : params) {
    param.param = param.param.to(at::kHalf);
    param.info.dtype = ckpt::DType::Float16;
  }
  return params;
}

OptimizerConfig fp16_config() {
  OptimizerConfig config = muon_config();
  config.bf16 = false;
  config.fp16 = true;
  config.params_dtype = ckpt::DType::Float16;
  config.initial_loss_scale = 1024;
  config.hysteresis = 1;
  return config;
}

// Every gradient times the loss scale, in fp16; infinite in `bad`.
void bind_scaled(optim::Optimizer& optimizer, int64_t step, const std::string& bad = {}) {
  const double scale = optimizer.get_loss_scale();
  optimizer.bind_grads([&](const optim::ParamInfo& info) {
    at::Tensor grad = gradient_of(info, step).mul_(scale).to(at::kHalf);
    if (info.name == bad) grad.fill_(std::numeric_limits<float>::infinity());
    return grad;
  });
}

BOOST_AUTO_TEST_CASE(an_overflow_on_one_rank_skips_the_step_on_all) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::array<std::vector<double>, 2> scales;
  std::array<bool, 2> moved = {true, true}, updated = {false, false};
  const auto run = [&](size_t process) {
    const auto optimizer = make_optimizer(fp16_model(), {2, 2}, groups[process], fp16_config());
    std::vector<at::Tensor> before;
    for (const auto& param : optimizer->all_params()) before.push_back(param.param.clone());
    bind_scaled(*optimizer, 0, "output_layer.weight");  // one process owns it
    const optim::StepResult skipped = optimizer->step();
    moved[process] = skipped.update_successful || skipped.grad_norm.has_value();
    for (size_t i = 0; i < before.size(); ++i) {
      moved[process] |= !same_bits(before[i], optimizer->all_params()[i].param);
    }
    for (const optim::OptimizedParam* param : optimizer->get_parameters()) {
      moved[process] |= param->step != 0;
    }
    scales[process].push_back(optimizer->get_loss_scale());
    bind_scaled(*optimizer, 1);
    updated[process] = optimizer->step().update_successful;
    scales[process].push_back(optimizer->get_loss_scale());
  };
  { const std::jthread first(run, 0), second(run, 1); }
  for (const size_t process : {0, 1}) {
    BOOST_TEST(!moved[process]);
    BOOST_TEST(updated[process]);
    BOOST_TEST(scales[process] == (std::vector<double>{512, 512}));
  }
}

BOOST_AUTO_TEST_CASE(a_power_of_two_as_loss_scale_changes_no_bit) {
  OptimizerConfig config = fp16_config();
  std::vector<std::map<std::string, at::Tensor>> masters;
  for (const double scale : {1.0, 16.0}) {
    config.loss_scale = scale;
    const auto optimizer = make_optimizer(fp16_model(), {}, {}, config);
    BOOST_TEST(optimizer->get_loss_scale() == scale);
    BOOST_TEST(optimizer->scale_loss(random_tensor({1}, 1, 0).add_(3)).item<double>() == 3 * scale);
    for (int64_t step = 0; step < 3; ++step) {
      bind_scaled(*optimizer, step);
      optimizer->step();
    }
    Outcome outcome;
    collect_owned(*optimizer, outcome);
    masters.push_back(outcome.tensors);
  }
  for (const auto& [name, tensor] : masters[0]) {
    BOOST_TEST(largest_difference(tensor, masters[1].at(name)) <= 2e-3, name);
  }
}

BOOST_AUTO_TEST_CASE(the_scalers_state_travels_with_the_optimizers) {
  const auto saved = make_optimizer(fp16_model(), {}, {}, fp16_config());
  bind_scaled(*saved, 0, "output_layer.weight");
  saved->step();
  const auto loaded = make_optimizer(fp16_model(), {}, {}, fp16_config());
  loaded->load_state_dict(saved->state_dict());
  BOOST_TEST(loaded->get_loss_scale() == 512.0);
  const auto unscaled = make_optimizer(small_model(1, 4), {}, {});
  expect_error(ckpt::ErrorCode::InvalidArgument, "grad_scaler",
               [&] { unscaled->load_state_dict(saved->state_dict()); });
  expect_error(ckpt::ErrorCode::InvalidArgument, "grad_scaler",
               [&] { loaded->load_state_dict(unscaled->state_dict()); });
}

// --- bad gradients, bad peers ---

BOOST_AUTO_TEST_CASE(gradients_that_are_not_finite_or_absent_are_refused_before_anything_moves) {
  const auto optimizer = make_optimizer(small_model(1, 9), {}, {});
  const at::Tensor before = optimizer->all_params()[0].param.clone();
  const std::string name = "output_layer.weight";
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    optimizer->bind_grads([&](const optim::ParamInfo& info) {
      at::Tensor grad = gradient_of(info, 0);
      if (info.name == name) grad.mutable_data_ptr<float>()[1] = bad;
      return grad;
    });
    expect_error(ckpt::ErrorCode::InvalidArgument, name, [&] { optimizer->step(); });
  }
  optimizer->bind_grads([](const optim::ParamInfo&) { return at::Tensor(); });
  expect_error(ckpt::ErrorCode::InvalidArgument, "", [&] { optimizer->step(); });
  BOOST_TEST(same_bits(optimizer->all_params()[0].param, before));
}

BOOST_AUTO_TEST_CASE(gradients_of_another_type_than_main_grads_dtype_are_refused) {
  OptimizerConfig config = muon_config();
  config.use_precision_aware_optimizer = true;
  config.main_grads_dtype = ckpt::DType::BFloat16;
  const auto optimizer = make_optimizer(small_model(1, 9), {}, {}, config);
  optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
  expect_error(ckpt::ErrorCode::InvalidArgument, optimizer->get_parameters()[0]->model.info.name,
               [&] { optimizer->step(); });
  optimizer->bind_grads(
      [](const optim::ParamInfo& info) { return gradient_of(info, 0).to(at::kBFloat16); });
  BOOST_TEST(optimizer->step().update_successful);
}

BOOST_AUTO_TEST_CASE(a_rank_that_dies_gives_the_others_an_error_and_no_update) {
  const auto groups = optim::make_in_process_groups(
      2, {.network_interface = "lo", .timeout = std::chrono::seconds(10)});
  at::Tensor before, after;
  std::string again;
  const auto errors = run_both([&](size_t process) {
    const auto optimizer = make_optimizer(small_model(1, 3), {2, 2}, groups[process]);
    if (process == 1) return;  // it never takes the step
    before = optimizer->all_params()[0].param.clone();
    optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
    try {
      optimizer->step();
    } catch (const ckpt::Error&) {
      after = optimizer->all_params()[0].param.clone();
      try {
        optimizer->allgather_params();
      } catch (const ckpt::Error& error) {
        again = error.what();
      }
      throw;
    }
  });
  BOOST_TEST(errors[0].find("all-reduce failed") != std::string::npos, errors[0]);
  BOOST_TEST(again.find("earlier collective operation failed") != std::string::npos, again);
  BOOST_TEST(same_bits(before, after));
}

// --- experts ---

// Two data-parallel processes, each with an expert of its own: nobody shares it.
BOOST_AUTO_TEST_CASE(experts_stay_with_their_expert_parallel_rank) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::array<double, 2> norms = {};
  std::array<at::Tensor, 2> experts;
  std::array<size_t, 2> owned = {};
  const auto errors = run_both([&](size_t process) {
    std::vector<optim::Param> params = small_model(1, 3);
    params.push_back(bf16_matrix("decoder.layers.0.mlp.experts.linear_fc1.weight0", 8, 8));
    params.back().info.attributes.allreduce = false;
    params.back().param.add_(static_cast<double>(process));
    optim::ProcessGroupCollection own = groups[process];
    own.expt_dp = nullptr;  // one process
    const auto optimizer = make_optimizer(params, {2, 2}, own);
    optimizer->bind_grads([&](const optim::ParamInfo& info) {
      return gradient_of(info, info.attributes.allreduce ? 0 : static_cast<int64_t>(process));
    });
    norms[process] = optimizer->step().grad_norm->get();
    experts[process] = params.back().param.clone();
    owned[process] = optimizer->get_parameters().size();
  });
  BOOST_TEST(errors[0] == "");
  BOOST_TEST(norms[0] == norms[1]);
  BOOST_TEST(owned[0] + owned[1] == 10U + 2U);  // dense ones once, experts on both
  BOOST_TEST(!same_bits(experts[0], experts[1]));
  double squares = 0;
  for (const optim::Param& param : small_model(1, 3)) {
    const double norm = gradient_of(param.info, 0).norm().item<double>();
    squares += norm * norm;
  }
  for (const int64_t step : {0, 1}) {
    const auto info = bf16_matrix("decoder.layers.0.mlp.experts.linear_fc1.weight0", 8, 8).info;
    const double norm = gradient_of(info, step).norm().item<double>();
    squares += norm * norm;
  }
  BOOST_TEST(norms[0] == std::sqrt(squares), boost::test_tools::tolerance(1e-6));
}

// Tensor-parallel ranks hold copies of what is not split: it counts once.
BOOST_AUTO_TEST_CASE(tensor_parallel_duplicates_count_once) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::array<double, 2> norms = {};
  const auto errors = run_both([&](size_t process) {
    optim::ProcessGroupCollection tensor_parallel;
    tensor_parallel.tp = tensor_parallel.world = groups[process].dp_cp;
    const auto optimizer = make_optimizer(small_model(1, 3), {}, tensor_parallel);
    optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
    norms[process] = optimizer->step().grad_norm->get();
  });
  BOOST_TEST(errors[0] == "");
  BOOST_TEST(norms[0] == norms[1]);
  double squares = 0;
  for (const optim::Param& param : small_model(1, 3)) {
    const double norm = gradient_of(param.info, 0).norm().item<double>();
    squares += norm * norm * (param.info.attributes.tensor_model_parallel ? 2 : 1);
  }
  BOOST_TEST(norms[0] == std::sqrt(squares), boost::test_tools::tolerance(1e-6));
}

// --- what a configuration asks for besides numbers ---

BOOST_AUTO_TEST_CASE(timers_hear_of_every_section_of_a_step) {
  std::vector<std::string> started;
  std::multiset<std::string> open;
  OptimizerConfig config = muon_config();
  config.barrier_with_L1_time = true;
  config.timers = [&](std::string_view section, optim::TimerEvent event) {
    if (event == optim::TimerEvent::Start) {
      started.emplace_back(section);
      open.emplace(section);
    } else {
      open.erase(open.find(std::string(section)));
    }
  };
  const auto optimizer = make_optimizer(small_model(1, 3), {}, {}, config);
  optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
  optimizer->step();
  BOOST_TEST(started == (std::vector<std::string>{
                            "optimizer-copy-to-main-grad", "optimizer-clip-main-grad",
                            "optimizer-count-zeros", "optimizer-inner-step", "params-all-gather"}));
  BOOST_TEST(open.empty());
}

BOOST_AUTO_TEST_CASE(the_configuration_is_written_where_its_logger_dir_says) {
  const test::TemporaryFolder folder;
  OptimizerConfig config = muon_config();
  config.config_logger_dir = folder.path().string();
  make_optimizer(small_model(1, 3), {}, {}, config);
  std::ifstream file(folder / "optimizer_config.rank_0.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  BOOST_TEST(optim::to_json(optim::optimizer_config_from_json(text)) == optim::to_json(config));
}

BOOST_AUTO_TEST_CASE(an_adopted_buffer_keeps_the_callers_tensors_and_values) {
  std::vector<optim::Param> params = small_model(1, 3);
  std::vector<at::Tensor> before;
  for (const optim::Param& param : params) before.push_back(param.param.clone());
  const auto optimizer = make_optimizer(params, {.adopts = true}, {});
  for (size_t i = 0; i < params.size(); ++i) BOOST_TEST(same_bits(params[i].param, before[i]));
  optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
  optimizer->step();
  for (size_t i = 0; i < params.size(); ++i) BOOST_TEST(!same_bits(params[i].param, before[i]));
}

BOOST_AUTO_TEST_SUITE_END()
