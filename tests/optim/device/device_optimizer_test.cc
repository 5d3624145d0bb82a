// Whole optimizers, whose steps run on a device: here by the kernels' CPU twins.
#include <limits>
#include <ranges>
#include <string>
#include <variant>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <optim/process_groups.h>
#include <optim/update_rule.h>

#include "faulty_step.h"
#include "on_gpu.h"
#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "step/device/device_ops.h"
#include "step/optimizer/peers_and_device.h"

namespace {

using optim::Fault;
using optim::FaultyStep;

void use_kernels(optim::Optimizer& optimizer, const kernels::DeviceApi& api) {
  optim::StepInside::of(optimizer).device_api = &api;
}

Run device_run(int layers) {
  Run run = run_of_layers(layers);
  run.prepare = [](optim::LayerWiseDistributedOptimizer& optimizer) {
    use_kernels(optimizer, optim::host_api());
  };
  return run;
}

// The bits of all that a step may change.
std::vector<at::Tensor> copies_of(optim::LayerWiseDistributedOptimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    all.push_back(param->model.param.clone());
    all.push_back(optim::master_of(*param).clone());
  }
  return all;
}

int64_t updates_done(optim::LayerWiseDistributedOptimizer& optimizer) {
  int64_t count = 0;
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) count += param->step;
  return count;
}

void bind_gradients(optim::LayerWiseDistributedOptimizer& optimizer) {
  optimizer.bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
}

// cuBLASLt may sum otherwise where a batch has other matrices: Muon's weights may differ by what
// fp32 products do, their bf16 copies by a rounding. All else has the same bits.
void expect_same_but_for_products(const Outcome& ours, const Outcome& expected) {
  BOOST_TEST(ours.norms == expected.norms, boost::test_tools::per_element());
  BOOST_TEST(ours.zeros == expected.zeros, boost::test_tools::per_element());
  for (const auto& [name, tensor] : ours.tensors) {
    const at::Tensor& wanted = expected.tensors.at(name);
    const std::string param = name.substr(name.find('.') + 1);
    if (!expected.tensors.contains("momentum_buffer." + param) || name.starts_with("momentum")) {
      BOOST_TEST(same_bits(tensor, wanted), name);
      continue;
    }
    const double bound = tensor.scalar_type() == at::kFloat ? 1e-4 : 1.0 / 128;
    const double largest = wanted.to(at::kFloat).abs().max().item<double>();
    BOOST_TEST(largest_difference(tensor.to(at::kFloat), wanted.to(at::kFloat)) <= bound * largest,
               name);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_optimizer)

BOOST_FIXTURE_TEST_CASE(ranks_that_share_a_device_give_the_bits_of_one, OneThread) {
  const Run run = device_run(1);
  const Outcome expected = run_layout({}, run).front();
  const Layout layouts[] = {{4, 1},
                            {2, 2},
                            {3, 3},
                            {1, 2},    // process 1 owns nothing
                            {12, 12},  // two own nothing
                            {4, 4, optim::OwnershipPolicy::Balanced, true, true, 300},
                            {2, 2, optim::OwnershipPolicy::Lpt, true, false, 100}};
  for (const Layout& layout : layouts) {
    BOOST_TEST_CONTEXT(layout.ranks << " ranks in " << layout.processes << " processes") {
      for (const Outcome& outcome : run_layout(layout, run)) expect_same(outcome, expected);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_overflow_on_one_rank_skips_the_step_on_all) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::vector<std::unique_ptr<optim::LayerWiseDistributedOptimizer>> ranks(2);
  const auto run = [&](size_t rank) {
    optim::OptimizerConfig config = muon_config();
    config.loss_scale = 4;
    ranks[rank] = make_optimizer(small_model(1, 3), {2, 2}, groups[rank], config);
    use_kernels(*ranks[rank], optim::host_api());
    bind_gradients(*ranks[rank]);
    const std::vector<at::Tensor> before = copies_of(*ranks[rank]);
    at::Tensor broken = ranks[rank]->get_parameters().front()->model.main_grad;
    const at::Tensor whole = broken.clone();
    if (rank == 1) broken.view({-1})[0] = std::numeric_limits<float>::infinity();
    const bool was_updated = ranks[rank]->step().update_successful;
    const std::vector<at::Tensor> after = copies_of(*ranks[rank]);
    broken.copy_(whole);
    const bool moves_again = ranks[rank]->step().update_successful;
    return !was_updated && moves_again && std::ranges::equal(before, after, same_bits);
  };
  bool first = false, second = false;
  {
    const std::jthread one([&] { first = run(0); }), other([&] { second = run(1); });
  }
  BOOST_TEST(first);
  BOOST_TEST(second);
}

BOOST_AUTO_TEST_CASE(a_device_that_says_no_leaves_parameters_untouched) {
  const Fault faults[] = {Fault::Make,    Fault::Memory, Fault::Bind,
                          Fault::Capture, Fault::Rates,  Fault::Control,
                          Fault::Stats,   Fault::Update, Fault::LateUpdate};
  optim::OptimizerConfig config = muon_config();
  config.optimizer_cuda_graph = true;
  const auto expected = make_optimizer(small_model(1, 3), {}, {}, config);
  use_kernels(*expected, optim::host_api());
  bind_gradients(*expected);
  expected->step();
  for (const Fault fault : faults) {
    BOOST_TEST_CONTEXT("fault " << static_cast<int>(fault)) {
      const auto optimizer = make_optimizer(small_model(1, 3), {}, {}, config);
      use_kernels(*optimizer, optim::faulty_api());
      bind_gradients(*optimizer);
      const std::vector<at::Tensor> before = copies_of(*optimizer);
      FaultyStep::fault = fault;
      try {
        optimizer->step();
        BOOST_ERROR("was not refused");
      } catch (const ckpt::Error& error) {
        BOOST_TEST((error.code() == ckpt::ErrorCode::IoFailure));
        BOOST_TEST(error.problem().find("out of memory") != std::string::npos);
        BOOST_TEST(error.problem().find('\n') == std::string::npos);
      }
      FaultyStep::fault = Fault::None;
      BOOST_TEST(std::ranges::equal(copies_of(*optimizer), before, same_bits));
      BOOST_TEST(updates_done(*optimizer) == 0);
      optimizer->step();  // it works again, as if nothing had been
      BOOST_TEST(std::ranges::equal(copies_of(*optimizer), copies_of(*expected), same_bits));
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_another_shape_or_type_are_refused) {
  const auto optimizer = make_optimizer(small_model(1, 3), {}, {});
  use_kernels(*optimizer, optim::host_api());
  optimizer->bind_grads([](const optim::ParamInfo& info) {
    return gradient_of(info, 0).view({info.shape.back(), -1}).contiguous();
  });
  expect_error(ckpt::ErrorCode::InvalidArgument, "embedding.position_embeddings.weight",
               [&] { optimizer->step(); });
  optim::OptimizerConfig config = muon_config();
  config.use_precision_aware_optimizer = true;
  config.main_grads_dtype = ckpt::DType::BFloat16;
  const auto aware = make_optimizer(small_model(1, 3), {}, {}, config);
  use_kernels(*aware, optim::host_api());
  bind_gradients(*aware);
  expect_error(ckpt::ErrorCode::InvalidArgument, aware->get_parameters().front()->model.info.name,
               [&] { aware->step(); });
}

BOOST_AUTO_TEST_CASE(changed_settings_of_a_rule_take_effect) {
  const auto changed = make_optimizer(small_model(1, 3), {}, {});
  const auto expected = make_optimizer(small_model(1, 3), {}, {});
  for (optim::LayerWiseDistributedOptimizer* const optimizer : {changed.get(), expected.get()}) {
    if (optimizer == changed.get()) use_kernels(*optimizer, optim::host_api());
    bind_gradients(*optimizer);
    optimizer->step();
    for (optim::OptimizerGroup* const group : optimizer->param_groups()) {
      if (auto* const muon = group->rule_config.get_if<optim::MuonRule>()) {
        muon->momentum = 0.5;
        group->rule = optim::make_rule(group->rule_config);
      }
    }
    optimizer->step();
  }
  const auto found = changed->get_parameters(), wanted = expected->get_parameters();
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (const auto& [name, state] : optim::state_of(*wanted[i])) {
      const at::Tensor ours = optim::state_of(*found[i]).at(name);
      BOOST_TEST(largest_difference(ours, state) <= 1e-6, wanted[i]->model.info.name);
    }
  }
}

// The parameters' handles stay, the memory behind them does not.
BOOST_AUTO_TEST_CASE(parameters_that_moved_into_buffers_are_found_there) {
  std::vector<std::vector<at::Tensor>> found;
  for (const int adopt_before : {0, 1}) {
    const auto optimizer = make_optimizer(small_model(1, 3), {}, {});
    use_kernels(*optimizer, optim::host_api());
    bind_gradients(*optimizer);
    for (int step = 0; step < 3; ++step) {
      if (step == adopt_before) optimizer->adopt_param_buffers();
      optimizer->step();
    }
    found.push_back(copies_of(*optimizer));
  }
  BOOST_TEST(std::ranges::equal(found[0], found[1], same_bits));
}

BOOST_AUTO_TEST_CASE(a_step_without_any_gradient_is_refused) {
  const auto optimizer = make_optimizer(small_model(1, 3), {}, {});
  use_kernels(*optimizer, optim::host_api());
  expect_error(ckpt::ErrorCode::InvalidArgument, "", [&] { optimizer->step(); });
}

// Everything above by twins; here by kernels, where there is a GPU.
BOOST_FIXTURE_TEST_CASE(a_gpu_steps_nearly_as_the_cpu_and_elementwise_rules_alike_for_any_ranks,
                        OneThread) {
  if (lacks_gpu()) return;
  Run run = run_on_gpu(), run_on_cpu = run_of_layers(1);
  run.config.muon_fp32_matmul_prec = optim::MatmulPrecision::Highest;
  run_on_cpu.config = run.config;
  const Outcome on_cpu = run_layout({}, run_on_cpu).front();
  const Outcome expected = run_layout({}, run).front();
  run.config.optimizer_cuda_graph = true;
  for (const Layout& layout : {Layout{1, 1}, {1, 1}, {2, 2}, {3, 3}, {1, 2}}) {
    for (const Outcome& outcome : run_layout(layout, run)) {
      if (layout.ranks == 1) {
        expect_same(outcome, expected);
      } else {
        expect_same_but_for_products(outcome, expected);
      }
    }
  }
  for (const auto& [name, tensor] : on_cpu.tensors) {
    const at::Tensor found = expected.tensors.at(name).to(at::kFloat),
                     wanted = tensor.to(at::kFloat);
    BOOST_TEST(largest_difference(found, wanted) <= 1e-3 * wanted.abs().max().item<double>(), name);
  }
}

BOOST_AUTO_TEST_CASE(nccl_groups_say_why_they_cannot_be) {
  try {
    optim::join_nccl_group({}, {0, 1});
  } catch (const ckpt::Error& error) {  // on a machine without a GPU, or in a build without NCCL
    BOOST_TEST((error.code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(error.problem().find('\n') == std::string::npos);
    BOOST_TEST(error.problem().find("undefined symbol") == std::string::npos);
  }
}

// With one process: that the module finds NCCL, and that its group takes what lies on a GPU.
BOOST_FIXTURE_TEST_CASE(a_group_over_nccl_adds_what_lies_on_the_gpu, OneThread) {
  if (lacks_gpu()) return;
  const Run run = run_on_gpu();
  optim::ProcessGroupCollection groups;
  groups.dp_cp = groups.expt_dp = optim::join_nccl_group({}, {0, 1});
  std::vector<at::Tensor> ones = {at::ones({5}).to(run.device)};
  groups.dp_cp->allreduce(ones)->wait();
  BOOST_TEST(at::equal(ones[0].cpu(), at::ones({5})));
  expect_same(run_process({}, groups, run), run_process({}, {}, run));
}

BOOST_AUTO_TEST_SUITE_END()
