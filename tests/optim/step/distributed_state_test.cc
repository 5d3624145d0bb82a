#include <optim/checkpoint_bridge.h>

#include <set>

#include "optim/expect_error.h"
#include "optim/step/range_runs.h"

// The state of a DistributedOptimizer is that of whole parameters.
BOOST_AUTO_TEST_SUITE(distributed_state)

using ckpt::ErrorCode;

// The state of whole parameters: to and from any number of processes, and other optimizers.
BOOST_FIXTURE_TEST_CASE(a_state_is_that_of_whole_parameters, OneThread) {
  const Setup setup;
  Outcome expected;
  const auto whole = optim::get_megatron_optimizer(setup.config, setup.make_model());
  take_steps(*whole, setup, expected);
  std::vector<optim::StateValue> saved(3);
  const auto three = make_grid({1, 3});
  run_ranks(3, [&](size_t rank) {
    const auto optimizer = make_distributed(setup, three[rank]);
    Outcome ignored;
    take_steps(*optimizer, setup, ignored);
    saved[rank] = optimizer->state_dict();
  });
  const auto restored = optim::get_megatron_optimizer(setup.config, setup.make_model());
  restored->load_state_dict(saved[2]);
  const auto ours = whole->get_parameters(), after = restored->get_parameters();
  BOOST_REQUIRE(ours.size() == after.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    BOOST_TEST(ours[i]->step == after[i]->step);
    if (optim::has_master(*ours[i])) {
      BOOST_TEST(same_bits(optim::master_of(*ours[i]), optim::master_of(*after[i])));
    }
    for (const auto& [name, state] : ours[i]->state) {
      BOOST_TEST(same_bits(state, after[i]->state.at(name)), name);
    }
  }
  const auto two = make_grid({1, 2});
  Outcome resumed;
  run_ranks(2, [&](size_t rank) {
    const auto optimizer = make_distributed(setup, two[rank]);
    for (const optim::Param& param : optimizer->all_params()) {
      at::Tensor(param.param).copy_(expected.tensors.at("model." + param.info.name));
    }
    optimizer->load_state_dict(whole->state_dict());
    Outcome outcome;
    take_steps(*optimizer, setup, outcome, 1);
    if (rank == 1) resumed = outcome;
  });
  Outcome continued;
  take_steps(*whole, setup, continued, 1);
  expect_same(resumed, continued);
}

BOOST_FIXTURE_TEST_CASE(a_state_that_does_not_fit_is_refused_and_changes_nothing, OneThread) {
  const Setup setup;
  const auto optimizer = make_distributed(setup, {});
  Setup other = setup;
  other.make_model = [] {
    std::vector<optim::Param> params = odd_model();
    params.pop_back();
    return params;
  };
  const auto smaller = make_distributed(other, {});
  const at::Tensor unchanged = optim::master_of(*optimizer->get_parameters()[0]).clone();
  Outcome ignored;
  take_steps(*smaller, other, ignored);
  const optim::StateValue state = smaller->state_dict();
  expect_error(ErrorCode::InvalidArgument, "params", [&] { optimizer->load_state_dict(state); });
  BOOST_TEST(same_bits(unchanged, optim::master_of(*optimizer->get_parameters()[0])));
}

BOOST_FIXTURE_TEST_CASE(sharded_state_has_the_keys_of_fully_reshardable, OneThread) {
  const Setup setup;
  const auto grid = make_grid({1, 2});
  std::vector<std::set<std::string>> keys(2);
  run_ranks(2, [&](size_t rank) {
    const auto optimizer = make_distributed(setup, grid[rank]);
    Outcome ignored;
    take_steps(*optimizer, setup, ignored);
    optim::StateDict model;
    for (const optim::Param& param : optimizer->all_params()) {
      optim::put(model, param.info.name,
                 optim::sharded_tensor_from_rank_offsets(
                     param.info.name, optim::handle_of(param.param), {},
                     {.replica_id = optim::Shape{0, 0, static_cast<int64_t>(rank)}}));
    }
    const optim::StateValue state = optimizer->sharded_state_dict(model);
    const auto& dict = *state.get_if<optim::StateDict>();
    if (*optim::find(dict, "param_state_sharding_type")->get_if<std::string>() !=
        "fully_reshardable") {
      throw std::runtime_error("another sharding type");
    }
    for (const auto& [id, states] : *optim::find(dict, "param_state")->get_if<optim::StateDict>()) {
      for (const auto& [name, sharded] : *states.get_if<optim::StateDict>()) {
        keys[rank].insert(sharded.get_if<optim::ShardedTensor>()->key);
      }
    }
  });
  std::set<std::string> expected;
  for (const optim::Param& param : odd_model()) {
    for (const char* const state : {"param", "exp_avg", "exp_avg_sq"}) {
      expected.insert(std::string("optimizer.state.") + state + "." + param.info.name);
    }
  }
  BOOST_TEST(keys[0] == expected, boost::test_tools::per_element());
  BOOST_TEST(keys[1] == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
