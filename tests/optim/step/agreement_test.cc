#include <array>
#include <functional>
#include <limits>
#include <optional>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"

// What processes must agree on before they step, and in it.
BOOST_AUTO_TEST_SUITE(agreement)

using optim::OptimizerConfig;

BOOST_AUTO_TEST_CASE(ranks_with_other_models_or_policies_refuse_each_other) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  struct Setup {
    int layers = 2;
    Layout layout = {2, 2};
    OptimizerConfig config = muon_config();
    std::string expert = "decoder.layers.0.mlp.experts.linear_fc1.weight0";
    std::optional<optim::ConfigOverrides> overrides = {};
    optim::QkvSplit split = kSplit;
  };
  struct Row {
    const char* differs;
    std::function<void(Setup&)> change;  // of the second process
  };
  const Row rows[] = {
      {"configuration", [](Setup& s) { s.config.clip_grad = 2; }},
      {"configuration", [](Setup& s) { s.config.optimizer = "adam"; }},
      {"options", [](Setup& s) { s.layout.policy = optim::OwnershipPolicy::Balanced; }},
      {"options", [](Setup& s) { s.layout.bucket_bytes = 100; }},
      {"parameter groups",
       [](Setup& s) {
         s.overrides = {{{.name = {"*"}}, {{"max_lr", 0.5}}}};
       }},
      {"parameter groups",
       [](Setup& s) {
         s.split = {1, 1, 2};
       }},
      {"parameters",  // the same groups, another member
       [](Setup& s) {
         s.overrides = optim::get_standard_config_overrides(s.config);
         optim::set_override(*s.overrides, {.name = {"output_layer.weight"}}, {{"wd_mult", 0.0}});
       }},
      {"parameters", [](Setup& s) { s.layers = 1; }},
      {"experts", [](Setup& s) { s.expert += "0"; }}};
  for (const Row& row : rows) {
    const auto errors = run_both([&](size_t process) {
      Setup setup;
      if (process == 1) row.change(setup);
      std::vector<optim::Param> params = small_model(setup.layers, 3);
      params.push_back(bf16_matrix(setup.expert, 8, 8));
      params.back().info.attributes.allreduce = false;
      optim::MegatronOptimizerOptions options = {
          .overrides = setup.overrides, .groups = groups[process], .qkv_split = setup.split};
      options.layer_wise.ownership = setup.layout.policy;
      options.layer_wise.gather_bucket_bytes = setup.layout.bucket_bytes;
      optim::get_megatron_optimizer(setup.config, std::move(params), options);
    });
    for (const std::string& error : errors) {
      const std::string expected = std::string(" disagrees with this one on: ") + row.differs;
      BOOST_TEST(error.find(expected) != std::string::npos, row.differs << ": " << error);
    }
  }
}

BOOST_AUTO_TEST_CASE(init_state_functions_must_be_as_many_as_optimizers) {
  optim::MegatronOptimizerOptions options;
  options.qkv_split = kSplit;
  options.layer_wise.init_state_fns = {
      [](optim::GroupOptimizer& made, const OptimizerConfig&) { made.init_state(); }};
  expect_error(ckpt::ErrorCode::InvalidArgument, "init_state_fns",
               [&] { optim::get_megatron_optimizer(muon_config(), small_model(1, 3), options); });
  options.layer_wise.init_state_fns.push_back(options.layer_wise.init_state_fns.front());
  const auto made = optim::get_megatron_optimizer(muon_config(), small_model(1, 3), options);
  for (const optim::OptimizedParam* const param : made->get_parameters()) {
    BOOST_TEST(!optim::state_of(*param).empty());
  }
}

// Pipeline stages: the last has no embeddings, and only the middle one a decoupled rate.
BOOST_AUTO_TEST_CASE(ranks_of_a_world_have_the_same_groups_in_the_same_order) {
  for (const int size : {2, 3}) {
    const auto groups = optim::make_in_process_groups(size, {.network_interface = "lo"});
    std::vector<std::vector<std::string>> found(groups.size());
    std::vector<size_t> empty(groups.size());
    std::vector<char> stepped(groups.size());  // Boost.Test is for one thread
    const auto run = [&](size_t rank) {
      std::vector<optim::Param> params = small_model(1, 3 + rank);
      if (rank + 1 == groups.size()) {
        std::erase_if(params, [](const optim::Param& param) {
          return param.info.attributes.is_embedding_or_output_parameter;
        });
      }
      optim::MegatronOptimizerOptions options;
      options.groups.world = groups[rank].dp_cp;
      options.qkv_split = kSplit;
      options.overrides = optim::get_standard_config_overrides(muon_config());
      if (rank == 1) {
        optim::set_override(*options.overrides, {.name = {"*linear_fc1.weight"}},
                            {{"max_lr", 0.1}});
      }
      const auto optimizer =
          optim::get_megatron_optimizer(muon_config(), std::move(params), options);
      for (const optim::OptimizerGroup* const group : optimizer->param_groups()) {
        found[rank].push_back(group->settings.updated_by + " " +
                              std::to_string(group->settings.wd_mult) + " " +
                              std::to_string(group->settings.max_lr.value_or(0)));
        empty[rank] += group->params.empty() ? 1 : 0;
      }
      optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
      stepped[rank] = optimizer->step().update_successful ? 1 : 0;
      optimizer->load_state_dict(optimizer->state_dict());
    };
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < groups.size(); ++rank) threads.emplace_back(run, rank);
    }
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      BOOST_TEST(stepped[rank] == 1);
      BOOST_TEST(found[rank] == found[0], boost::test_tools::per_element());
      const bool is_last = rank + 1 == groups.size();
      BOOST_TEST(empty[rank] == (rank == 1 ? 0U : 1U) + (is_last ? 1U : 0U));
    }
    BOOST_TEST(found[0].size() == 4U);  // muon twice, adam with decay and without
  }
}

// A gradient that the norm leaves out is as bad as any other: in a tied weight's second copy, and
// in the copy of a tensor parallel rank that does not count it.
BOOST_AUTO_TEST_CASE(a_nan_in_a_gradient_that_does_not_count_is_refused_on_all_ranks) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  const std::string duplicate = "decoder.final_layernorm.weight", shared = "output_layer.weight";
  for (const std::string& name : {duplicate, shared}) {
    const auto errors = run_both([&](size_t process) {
      optim::ProcessGroupCollection tensor_parallel;
      tensor_parallel.tp = tensor_parallel.world = groups[process].dp_cp;
      std::vector<optim::Param> params = small_model(1, 3);
      for (optim::Param& param : params) param.info.attributes.shared = param.info.name == shared;
      const auto optimizer = make_optimizer(std::move(params), {}, tensor_parallel);
      optimizer->bind_grads([&](const optim::ParamInfo& info) {
        at::Tensor grad = gradient_of(info, 0);
        if (process == 1 && info.name == name) {
          grad.mutable_data_ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
        }
        return grad;
      });
      optimizer->step();
    });
    BOOST_TEST(errors[0].find("another rank is infinite or NaN") != std::string::npos, errors[0]);
    BOOST_TEST(errors[1].find(name) != std::string::npos, errors[1]);
  }
}

BOOST_AUTO_TEST_SUITE_END()
