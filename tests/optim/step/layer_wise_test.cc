#include <optim/checkpoint_bridge.h>

#include <array>
#include <filesystem>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "support/temporary_folder.h"

BOOST_AUTO_TEST_SUITE(layer_wise)

BOOST_FIXTURE_TEST_CASE(results_do_not_depend_on_ranks_processes_or_ownership, OneThread) {
  const Outcome expected = run_layout({}, run_of_layers(3)).front();
  const Layout layouts[] = {{2, 1},
                            {3, 1},
                            {4, 1},
                            {50, 1},  // more ranks than parameters
                            {2, 2},
                            {3, 3},
                            {4, 4},
                            {4, 3},  // process 0 holds two ranks
                            {1, 2},  // process 1 holds none
                            {6, 6, optim::OwnershipPolicy::PingPong, true, false, 256},
                            {2, 2, optim::OwnershipPolicy::Lpt, true, false, 100},
                            {3, 3, optim::OwnershipPolicy::Balanced, true, true, 300},
                            {4, 4, optim::OwnershipPolicy::PingPong, false, true, 1000},
                            {4, 3, optim::OwnershipPolicy::Lpt, true, true},
                            {3, 2, optim::OwnershipPolicy::Balanced}};
  for (const Layout& layout : layouts) {
    BOOST_TEST_CONTEXT(layout.ranks << " ranks in " << layout.processes << " processes") {
      size_t state_count = 0;
      for (const Outcome& outcome : run_layout(layout, run_of_layers(3))) {
        expect_same(outcome, expected);
        state_count += outcome.tensors.size() - 22;  // every process has the 22 parameters
      }
      BOOST_TEST(state_count == expected.tensors.size() - 22);  // and each state one owner
    }
  }
}

// Beside bf16 ones: they are their own masters, wherever they lie.
BOOST_FIXTURE_TEST_CASE(fp32_parameters_of_an_adopted_buffer_are_updated, OneThread) {
  Run run = run_of_layers(1);
  run.make_model = [] {
    std::vector<optim::Param> params = small_model(1, 17);
    for (optim::Param& param : params) {
      if (param.info.shape.size() != 1) continue;
      param.param = param.param.to(at::kFloat).set_requires_grad(true);
      param.info.dtype = ckpt::DType::Float32;
    }
    return params;
  };
  const Outcome expected = run_layout({}, run).front();
  for (const Layout& layout : {Layout{1, 1, optim::OwnershipPolicy::PingPong, false, true},
                               Layout{2, 2, optim::OwnershipPolicy::PingPong, false, true},
                               Layout{2, 2, optim::OwnershipPolicy::PingPong, true, true}}) {
    for (const Outcome& outcome : run_layout(layout, run)) expect_same(outcome, expected);
  }
}

BOOST_AUTO_TEST_CASE(a_qkv_weight_that_cannot_be_split_is_refused_before_any_step) {
  const auto make = [](const std::optional<optim::QkvSplit>& split, bool splits) {
    optim::OptimizerConfig config = muon_config();
    config.muon_split_qkv = splits;
    optim::MegatronOptimizerOptions options;
    options.qkv_split = split;
    optim::get_megatron_optimizer(config, small_model(1, 1), options);
  };
  const std::optional<optim::QkvSplit> refused[] = {
      std::nullopt, optim::QkvSplit{4, 2, 1}, optim::QkvSplit{24, 24, 24},
      optim::QkvSplit{8, 8, -8}, optim::QkvSplit{24, 0, 0}};  // of 24 rows
  for (const auto& split : refused) {
    expect_error(ckpt::ErrorCode::InvalidArgument, "muon_split_qkv", [&] { make(split, true); });
  }
  make(kSplit, true);
  make(std::nullopt, false);
}

BOOST_FIXTURE_TEST_CASE(broadcast_brings_what_all_gather_brings, OneThread) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::array<std::vector<at::Tensor>, 2> all_gathered, broadcast;
  const auto run = [&](size_t process) {
    const auto optimizer = make_optimizer(small_model(1, 3), {2, 2}, groups[process]);
    for (const optim::Param& param : optimizer->all_params()) {
      if (process == 1) at::Tensor(param.param).add_(1);  // processes differ everywhere
    }
    optimizer->allgather_params();
    for (const optim::Param& param : optimizer->all_params()) {
      all_gathered[process].push_back(param.param.clone());
    }
    optimizer->broadcast_params();
    for (const optim::Param& param : optimizer->all_params()) {
      broadcast[process].push_back(param.param.clone());
    }
  };
  { const std::jthread first(run, 0), second(run, 1); }
  BOOST_REQUIRE(all_gathered[0].size() == broadcast[1].size());
  for (size_t i = 0; i < broadcast[1].size(); ++i) {
    BOOST_TEST(same_bits(all_gathered[0][i], all_gathered[1][i]));
    BOOST_TEST(same_bits(all_gathered[0][i], broadcast[0][i]));
    BOOST_TEST(same_bits(all_gathered[1][i], broadcast[1][i]));
  }
}

BOOST_AUTO_TEST_CASE(groups_and_owners_are_the_references) {
  const auto optimizer = make_optimizer(small_model(2, 1), {4, 1}, {});
  const auto groups = optimizer->param_groups();
  BOOST_REQUIRE(groups.size() == 3U);  // muon; adam with decay; adam without
  BOOST_TEST(groups[0]->settings.updated_by == "muon");
  BOOST_TEST(groups[1]->settings.wd_mult == 1.0);
  BOOST_TEST(groups[2]->settings.wd_mult == 0.0);
  BOOST_TEST(groups[1]->params.size() == 2U);  // word embeddings, output layer
  BOOST_TEST(optimizer->all_params().size() == 16U);
  BOOST_TEST(optimizer->ownership().owner.size() == 16U);
}

BOOST_AUTO_TEST_CASE(masters_exist_for_bf16_and_round_back_to_it) {
  const auto optimizer = make_optimizer(small_model(1, 9), {}, {});
  optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
  optimizer->step();
  for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
    BOOST_TEST(param->main_param.scalar_type() == at::kFloat);
    BOOST_TEST(same_bits(param->main_param.to(at::kBFloat16), param->model.param));
  }
  optimizer->reload_model_params();
  for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
    BOOST_TEST(same_bits(param->main_param, param->model.param.to(at::kFloat)));
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_without_gradient_does_not_move) {
  const auto optimizer = make_optimizer(small_model(1, 9), {}, {});
  const at::Tensor before = optimizer->all_params()[0].param.clone();
  const std::string name = optimizer->all_params()[0].info.name;
  optimizer->bind_grads([&](const optim::ParamInfo& info) {
    return info.name == name ? at::Tensor() : gradient_of(info, 0);
  });
  optimizer->step();
  BOOST_TEST(same_bits(optimizer->all_params()[0].param, before));
  BOOST_TEST(optimizer->get_parameters()[0]->step == 0);
}

BOOST_AUTO_TEST_CASE(a_gradient_of_another_shape_is_refused) {
  const auto optimizer = make_optimizer(small_model(1, 9), {}, {});
  optimizer->bind_grads([](const optim::ParamInfo&) { return random_tensor({3}, 1); });
  expect_error(ckpt::ErrorCode::InvalidArgument, "embedding.position_embeddings.weight",
               [&] { optimizer->step(); });
}

BOOST_AUTO_TEST_CASE(groups_that_do_not_fit_each_other_are_refused_by_name) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  optim::MegatronOptimizerOptions options;
  options.groups.tp = groups[0].dp_cp;
  options.qkv_split = kSplit;
  expect_error(ckpt::ErrorCode::InvalidArgument, "world",
               [&] { optim::get_megatron_optimizer(muon_config(), small_model(1, 1), options); });
  options.groups = {};
  options.groups.expt_dp = groups[0].dp_cp;
  expect_error(ckpt::ErrorCode::InvalidArgument, "expt_dp",
               [&] { optim::get_megatron_optimizer(muon_config(), small_model(1, 1), options); });
}

// --- state dicts ---

void take_steps(optim::LayerWiseDistributedOptimizer& optimizer, int64_t first, int64_t count) {
  for (int64_t step = first; step < first + count; ++step) {
    optimizer.bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, step); });
    optimizer.step();
  }
}

std::map<std::string, at::Tensor> state_of(optim::LayerWiseDistributedOptimizer& optimizer) {
  Outcome outcome;
  collect_owned(optimizer, outcome);
  return outcome.tensors;
}

BOOST_FIXTURE_TEST_CASE(a_saved_state_continues_as_if_it_had_not_stopped, OneThread) {
  const test::TemporaryFolder folder;
  const auto file = folder / "state.pt";
  const auto whole = make_optimizer(small_model(2, 5), {}, {});
  take_steps(*whole, 0, 2);
  whole->save_state_dict_to_file(file);

  std::vector<optim::Param> params = small_model(2, 5);
  const auto resumed = make_optimizer(params, {}, {});
  resumed->load_state_dict_from_file(file);
  for (size_t id = 0; id < resumed->all_params().size(); ++id) {  // the model is saved elsewhere
    at::Tensor(resumed->all_params()[id].param).copy_(whole->all_params()[id].param);
  }
  take_steps(*whole, 2, 2);
  take_steps(*resumed, 2, 2);
  const auto expected = state_of(*whole);
  for (const auto& [name, tensor] : state_of(*resumed)) {
    BOOST_TEST(same_bits(tensor, expected.at(name)), name);
  }
}

BOOST_AUTO_TEST_CASE(a_state_of_another_model_is_refused_and_changes_nothing) {
  const auto ours = make_optimizer(small_model(1, 5), {}, {});
  take_steps(*ours, 0, 1);
  const auto before = state_of(*ours);
  const auto other = make_optimizer(small_model(2, 5), {}, {});
  take_steps(*other, 0, 1);
  expect_error(ckpt::ErrorCode::InvalidArgument, "params",
               [&] { ours->load_state_dict(other->state_dict()); });
  for (const auto& [name, tensor] : state_of(*ours)) {
    BOOST_TEST(same_bits(tensor, before.at(name)), name);
  }
}

BOOST_AUTO_TEST_CASE(a_chain_with_one_damaged_state_is_left_as_it_was) {
  const auto ours = make_optimizer(small_model(1, 5), {}, {});
  take_steps(*ours, 0, 1);
  const auto before = state_of(*ours);
  const auto other = make_optimizer(small_model(1, 6), {}, {});
  take_steps(*other, 0, 2);
  optim::StateValue state = other->state_dict();
  auto& adam = *state.get_if<optim::StateList>()->at(1).get_if<optim::StateDict>();
  optim::put(adam, "fp32_from_fp16_params", optim::StateList{});
  expect_error(ckpt::ErrorCode::InvalidArgument, "fp32_from_fp16_params",
               [&] { ours->load_state_dict(state); });
  for (const auto& [name, tensor] : state_of(*ours)) {
    BOOST_TEST(same_bits(tensor, before.at(name)), name);
  }
}

BOOST_AUTO_TEST_CASE(saved_options_and_states_that_would_be_dropped_are_refused_by_name) {
  struct Row {
    const char* rule;
    const char* refused;
    std::function<void(optim::StateDict& group, optim::StateDict& state)> damage;
  };
  const auto sets = [](const char* option) {
    return
        [option](optim::StateDict& group, optim::StateDict&) { optim::put(group, option, true); };
  };
  const Row rows[] = {
      {"adam", "amsgrad", sets("amsgrad")},
      {"adam", "maximize", sets("maximize")},
      {"sgd", "nesterov", sets("nesterov")},
      {"sgd", "dampening", [](auto& group, auto&) { optim::put(group, "dampening", 0.5); }},
      {"adam", "state/0/max_exp_avg_sq",
       [](auto&, optim::StateDict& state) { optim::put(state, "max_exp_avg_sq", 1.0); }}};
  for (const Row& row : rows) {
    optim::OptimizerConfig config = muon_config();
    config.optimizer = row.rule;
    const auto optimizer = make_optimizer(small_model(1, 5), {}, {}, config);
    take_steps(*optimizer, 0, 1);
    optim::StateValue saved = optimizer->state_dict();
    optimizer->load_state_dict(saved);
    auto& inner =
        *optim::find(*saved.get_if<optim::StateDict>(), "optimizer")->get_if<optim::StateDict>();
    auto& groups = *optim::find(inner, "param_groups")->get_if<optim::StateList>();
    auto& states = *optim::find(inner, "state")->get_if<optim::StateDict>();
    row.damage(*groups.at(0).get_if<optim::StateDict>(),
               *optim::find(states, int64_t{0})->get_if<optim::StateDict>());
    expect_error(ckpt::ErrorCode::InvalidArgument, row.refused,
                 [&] { optimizer->load_state_dict(saved); });
  }
}

BOOST_AUTO_TEST_CASE(a_configuration_without_sense_is_refused_without_the_factory_too) {
  optim::OptimizerConfig config = muon_config();
  config.adam_beta1 = 1.5;
  expect_error(ckpt::ErrorCode::InvalidArgument, "adam_beta1",
               [&] { optim::LayerWiseDistributedOptimizer({}, config); });
}

BOOST_AUTO_TEST_CASE(groups_of_nemo_checkpoints_are_found_under_their_names) {
  const auto optimizer = make_optimizer(small_model(1, 5), {}, {});
  take_steps(*optimizer, 0, 1);
  optim::StateValue saved = optimizer->state_dict();
  for (optim::StateValue& entry : *saved.get_if<optim::StateList>()) {
    auto& inner =
        *optim::find(*entry.get_if<optim::StateDict>(), "optimizer")->get_if<optim::StateDict>();
    for (optim::StateValue& group :
         *optim::find(inner, "param_groups")->get_if<optim::StateList>()) {
      for (auto& [key, value] : *group.get_if<optim::StateDict>()) {
        if (key == optim::StateKey("wd_mult")) key = "pre_wd_mult";
        if (key == optim::StateKey("lr_mult")) key = "pre_lr_mult";
      }
    }
  }
  const auto resumed = make_optimizer(small_model(1, 5), {}, {});
  resumed->load_state_dict(saved);
  const auto ours = resumed->get_parameters(), theirs = optimizer->get_parameters();
  for (size_t i = 0; i < ours.size(); ++i) {
    BOOST_TEST(same_bits(optim::master_of(*ours[i]), optim::master_of(*theirs[i])));
  }
}

BOOST_AUTO_TEST_CASE(a_sharded_state_without_any_parameter_of_the_optimizer_is_refused) {
  const auto optimizer = make_optimizer(small_model(1, 5), {}, {});
  expect_error(ckpt::ErrorCode::InvalidArgument, "model_sharded_state_dict",
               [&] { optimizer->sharded_state_dict({}); });
}

BOOST_AUTO_TEST_CASE(sharded_state_has_the_references_keys) {
  const auto optimizer = make_optimizer(small_model(1, 5), {}, {});
  take_steps(*optimizer, 0, 1);
  optim::StateDict model;
  for (const optim::Param& param : optimizer->all_params()) {
    optim::put(
        model, param.info.name,
        optim::sharded_tensor_from_rank_offsets(param.info.name, optim::handle_of(param.param), {},
                                                {.replica_id = optim::Shape{0, 0, 3}}));
  }
  const optim::StateValue state = optimizer->sharded_state_dict(model);
  const auto& chain = *state.get_if<optim::StateDict>();
  BOOST_REQUIRE(chain.size() == 2U);
  const auto& adam = *optim::find(chain, int64_t{1})->get_if<optim::StateDict>();
  const auto& inner = *optim::find(adam, "optimizer")->get_if<optim::StateDict>();
  const auto& of_params = *optim::find(inner, "state")->get_if<optim::StateDict>();
  BOOST_TEST(optim::find(of_params, "common_step") != nullptr);
  const auto& first = *optim::find(of_params, int64_t{0})->get_if<optim::StateDict>();
  const auto& moment = *optim::find(first, "exp_avg")->get_if<optim::ShardedTensor>();
  BOOST_TEST(moment.key == "optimizer.state.exp_avg.embedding.word_embeddings.weight");
  BOOST_TEST((moment.replica_id == optim::ReplicaId(optim::Shape{0, 0, 0})));
  const auto& masters = *optim::find(adam, "fp32_from_fp16_params")->get_if<optim::StateDict>();
  const auto& group = *optim::find(masters, int64_t{0})->get_if<optim::StateList>();
  BOOST_TEST(group[0].get_if<optim::ShardedTensor>()->key ==
             "optimizer.state.fp32_param.embedding.word_embeddings.weight");
}

BOOST_AUTO_TEST_SUITE_END()
