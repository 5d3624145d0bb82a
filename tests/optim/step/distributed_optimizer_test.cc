#include <ATen/ops/zeros.h>

#include <limits>

#include "optim/expect_error.h"
#include "optim/step/range_runs.h"

// Ranges of elements against whole parameters, bit for bit.
BOOST_AUTO_TEST_SUITE(distributed_optimizer)

using ckpt::ErrorCode;

BOOST_FIXTURE_TEST_CASE(ranges_have_the_bits_of_whole_parameters, OneThread) {
  expect_bits_of_whole({}, {1, 2, 3, 4, 5, 8});
  Setup several_buckets;
  several_buckets.bucket_elements = 1000;
  expect_bits_of_whole(several_buckets, {2, 3, 7});
}

// Of eleven elements in all; most ranks have none, and blocks of a norm go over several ranks.
BOOST_FIXTURE_TEST_CASE(more_processes_than_elements_change_nothing, OneThread) {
  Setup tiny;
  tiny.make_model = [] {
    std::vector<optim::Param> params = odd_model();
    std::erase_if(params, [](const optim::Param& p) { return p.param.numel() > 70; });
    return params;
  };
  expect_bits_of_whole(tiny, {2, 6, 12});
}

BOOST_FIXTURE_TEST_CASE(every_rule_by_element_is_cut_anywhere, OneThread) {
  for (const char* const rule : {"adam", "sgd", "lion"}) {
    Setup setup;
    setup.config = adam_config(rule);
    setup.config.decoupled_weight_decay = false;
    expect_bits_of_whole(setup, {5});
    setup.config.bf16 = false;
    setup.config.params_dtype = ckpt::DType::Float32;
    setup.make_model = [] {
      std::vector<optim::Param> params = odd_model();
      for (optim::Param& param : params) {
        param.param = param.param.to(at::kFloat).set_requires_grad(true);
        param.info.dtype = ckpt::DType::Float32;
      }
      return params;
    };
    expect_bits_of_whole(setup, {7});
  }
}

BOOST_FIXTURE_TEST_CASE(overlap_of_gathers_changes_nothing, OneThread) {
  for (const bool by_chunk : {false, true}) {
    Setup setup;
    setup.config.overlap_param_gather = true;
    setup.config.overlap_param_gather_with_optimizer_step = by_chunk;
    setup.gather_bucket_bytes = 1000;
    expect_bits_of_whole(setup, {3, 4});
  }
}

BOOST_FIXTURE_TEST_CASE(states_of_fewer_bits_are_cut_where_they_have_no_scale, OneThread) {
  for (const bool keeps_remainders : {true, false}) {
    Setup setup;
    setup.config.use_precision_aware_optimizer = true;
    setup.config.store_param_remainders = keeps_remainders;
    setup.config.exp_avg_dtype = setup.config.exp_avg_sq_dtype = ckpt::DType::BFloat16;
    expect_bits_of_whole(setup, {3});
  }
}

BOOST_FIXTURE_TEST_CASE(an_overflow_in_one_range_skips_the_step_of_all, OneThread) {
  Setup setup;
  setup.config.bf16 = false;
  setup.config.fp16 = true;
  setup.config.params_dtype = ckpt::DType::Float16;
  setup.config.initial_loss_scale = 1024;
  setup.config.hysteresis = 1;
  setup.make_model = [] {
    std::vector<optim::Param> params = odd_model();
    for (optim::Param& param : params) {
      param.param = param.param.to(at::kHalf);
      param.info.dtype = ckpt::DType::Float16;
    }
    return params;
  };
  setup.grad_of = [](const optim::ParamInfo& info, int64_t step) {
    at::Tensor grad = gradient_of(info, step).mul_(1024);
    const bool overflows = step == 1 && info.name.find("fc1") != std::string::npos;
    if (overflows) grad.view({-1})[7] = std::numeric_limits<float>::infinity();
    return grad;
  };
  expect_bits_of_whole(setup, {3});
  BOOST_TEST(whole_outcome(setup).norms[1] == -1);  // skipped
}

BOOST_FIXTURE_TEST_CASE(a_reduce_scatter_gives_the_bits_of_the_average, OneThread) {
  for (const int processes : {2, 3}) {
    const auto grid = make_grid({1, processes});
    const auto grads_on = [](size_t rank) {
      std::map<std::string, at::Tensor> grads;
      for (const optim::Param& param : odd_model()) {
        const at::Tensor grad = gradient_of(param.info, static_cast<int64_t>(rank));
        const bool is_bf16 = param.info.name.find("proj") != std::string::npos;
        grads[param.info.name] = is_bf16 ? grad.to(at::kBFloat16) : grad;
      }
      return grads;
    };
    std::vector<size_t> wrong(grid.size(), 0), compared(grid.size(), 0);
    run_ranks(grid.size(), [&](size_t rank) {
      Setup setup;
      setup.gather_bucket_bytes = 3000;
      const auto optimizer = make_distributed(setup, grid[rank]);
      auto grads = grads_on(rank);
      const auto untouched = grads_on(rank);
      const auto of = [&](const optim::ParamInfo& info) { return grads.at(info.name); };
      optimizer->reduce_scatter_grads(of);
      for (uint32_t id = 0; id < optimizer->all_params().size(); ++id) {
        const std::string& name = optimizer->all_params()[id].info.name;
        at::Tensor expected = untouched.at(name).clone();
        at::Tensor sum = at::zeros(expected.sizes(), at::kFloat);
        for (size_t other = 0; other < grid.size(); ++other) {
          sum.add_(grads_on(other).at(name).to(at::kFloat));
        }
        const auto [begin, count] = optimizer->own_range(id);
        expected.view({-1})
            .narrow(0, begin, count)
            .copy_(sum.div_(processes).view({-1}).narrow(0, begin, count));
        wrong[rank] += same_bits(grads.at(name), expected) ? 0 : 1;
        compared[rank] += count > 0 ? 1 : 0;
      }
    });
    for (size_t rank = 0; rank < grid.size(); ++rank) {
      BOOST_TEST(wrong[rank] == 0U);
      BOOST_TEST(compared[rank] > 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gradient_that_one_process_lacks_is_refused_on_all_before_anything_moves) {
  const auto grid = make_grid({1, 3});
  const std::string name = "decoder.layers.0.mlp.linear_fc1.weight";
  std::vector<bool> same(grid.size(), true);
  for (const bool reduces : {false, true}) {
    const auto errors = errors_of_ranks(grid.size(), [&](size_t rank) {
      const Setup setup;
      const auto optimizer = make_distributed(setup, grid[rank]);
      const auto grad_of = [&](const optim::ParamInfo& info) {
        return rank == 1 && info.name == name ? at::Tensor() : gradient_of(info, 0);
      };
      if (reduces) optimizer->reduce_scatter_grads(grad_of);
      optimizer->bind_grads(grad_of);
      try {
        optimizer->step();
      } catch (...) {
        const std::vector<optim::Param> before = odd_model();
        for (const optim::Param& param : optimizer->all_params()) {
          for (const optim::Param& old : before) {
            if (old.info.name != param.info.name) continue;
            if (!same_bits(old.param, param.param)) same[rank] = false;
          }
        }
        throw;
      }
    });
    for (const std::string& error : errors) {
      BOOST_TEST(error.find(name) != std::string::npos, error);
    }
  }
  for (const bool is_same : same) BOOST_TEST(is_same);
}

BOOST_AUTO_TEST_CASE(processes_with_other_buckets_or_models_refuse_each_other) {
  const std::pair<const char*, std::function<void(Setup&)>> rows[] = {
      {"owners of parameters", [](Setup& s) { s.bucket_elements = 10; }},
      {"configuration", [](Setup& s) { s.config.clip_grad = 2; }},
      {"options", [](Setup& s) { s.gather_bucket_bytes = 77; }}};
  for (const auto& [expected, change] : rows) {
    const auto grid = make_grid({1, 2});
    const auto errors = errors_of_ranks(2, [&](size_t rank) {
      Setup setup;
      if (rank == 1) change(setup);
      make_distributed(setup, grid[rank]);
    });
    for (const std::string& error : errors) {
      BOOST_TEST(error.find(expected) != std::string::npos, expected << ": " << error);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_ranges_cannot_be_is_refused_by_name) {
  const char* const field = "use_distributed_optimizer";
  optim::OptimizerConfig config = adam_config();
  expect_error(ErrorCode::InvalidArgument, field,
               [&] { optim::DistributedOptimizer(config, odd_model()); });
  config.use_distributed_optimizer = true;
  expect_error(ErrorCode::Unsupported, field,
               [&] { optim::get_megatron_optimizer(config, odd_model()); });
  config.optimizer = "muon";
  expect_error(ErrorCode::Unsupported, field,
               [&] { optim::DistributedOptimizer(config, odd_model()); });
  config.optimizer = "adam";
  optim::DistributedOptimizerOptions options;
  options.overrides = {{{.name = {"*linear_proj.weight"}}, {{"optimizer", std::string("muon")}}}};
  expect_error(ErrorCode::Unsupported, field,
               [&] { optim::DistributedOptimizer(config, odd_model(), options); });
  const auto made = make_distributed({}, {});
  expect_error(ErrorCode::Unsupported, "is_loading",
               [&] { made->sharded_state_dict({}, /*is_loading=*/true); });
}

// Tensor and expert parallel processes beside data-parallel ones.
BOOST_FIXTURE_TEST_CASE(norms_of_a_grid_count_each_gradient_once, OneThread) {
  Setup setup;
  setup.make_model = [] { return small_model(2, 3); };
  std::array<std::vector<double>, 2> norms;
  for (const int dp : {1, 3}) {
    const auto grid = make_grid({2, dp});
    std::vector<Outcome> outcomes(grid.size());
    run_ranks(grid.size(), [&](size_t rank) {
      const auto optimizer = make_distributed(setup, grid[rank]);
      take_steps(*optimizer, setup, outcomes[rank]);
    });
    for (const Outcome& outcome : outcomes) {
      BOOST_TEST(outcome.norms == outcomes[0].norms, boost::test_tools::per_element());
      BOOST_TEST(outcome.zeros == outcomes[0].zeros, boost::test_tools::per_element());
    }
    norms[dp == 1 ? 0 : 1] = outcomes[0].norms;
  }
  BOOST_TEST(norms[0] == norms[1], boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
