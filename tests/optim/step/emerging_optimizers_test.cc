// SOAP and adaptive Muon as whole optimizers.
#include <optim/emerging_rules.h>

#include <limits>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "support/temporary_folder.h"

namespace {

std::vector<optim::OptimizerConfig> configs() {
  std::vector<optim::OptimizerConfig> all;
  for (const char* const name : {"soap", "adaptive_muon"}) {
    optim::OptimizerConfig config = muon_config();
    config.optimizer = name;
    all.push_back(config);
  }
  all.push_back(all.back());
  all.back().adaptive_muon_moment2_method = optim::Moment2Method::NorMuon;
  all.back().muon_scalar_optimizer = "lion";
  all.push_back(all[1]);
  all.back().adaptive_muon_moment2_method = optim::Moment2Method::Namo;
  return all;
}

void take_steps(optim::LayerWiseDistributedOptimizer& optimizer, int64_t first, int64_t count) {
  for (int64_t step = first; step < first + count; ++step) {
    optimizer.bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, step); });
    BOOST_REQUIRE(optimizer.step().update_successful);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emerging_optimizers)

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_ranks_processes_or_threads) {
  for (const optim::OptimizerConfig& config : configs()) {
    Run run = run_of_layers(2);
    run.config = config;
    const Outcome expected = run_layout({}, run).front();
    for (const Layout& layout : {Layout{3, 3, optim::OwnershipPolicy::Balanced},
                                 Layout{4, 2, optim::OwnershipPolicy::PingPong, true}}) {
      BOOST_TEST_CONTEXT(config.optimizer << " on " << layout.ranks << " ranks") {
        for (const Outcome& outcome : run_layout(layout, run)) expect_same(outcome, expected);
      }
    }
    const int threads = at::get_num_threads();
    at::set_num_threads(threads == 1 ? 2 : 1);
    expect_same(run_layout({}, run).front(), expected);
    at::set_num_threads(threads);
  }
}

BOOST_AUTO_TEST_CASE(a_saved_state_continues_as_if_it_had_not_stopped) {
  for (const optim::OptimizerConfig& config : configs()) {
    const test::TemporaryFolder folder;
    const auto whole = make_optimizer(small_model(1, 5), {}, {}, config);
    take_steps(*whole, 0, 2);
    whole->save_state_dict_to_file(folder / "state.pt");
    const auto resumed = make_optimizer(small_model(1, 5), {}, {}, config);
    resumed->load_state_dict_from_file(folder / "state.pt");
    take_steps(*whole, 2, 2);
    take_steps(*resumed, 2, 2);
    Outcome expected, outcome;
    collect_owned(*whole, expected);
    collect_owned(*resumed, outcome);
    expect_same(outcome, expected);
  }
}

BOOST_AUTO_TEST_CASE(groups_and_states_are_called_as_the_references_are) {
  const auto optimizer = make_optimizer(small_model(1, 5), {}, {}, configs().front());
  take_steps(*optimizer, 0, 1);
  const optim::StateValue saved = optimizer->state_dict();
  const auto& soap = *saved.get_if<optim::StateList>()->front().get_if<optim::StateDict>();
  const auto& inner = *optim::find(soap, optim::StateKey("optimizer"))->get_if<optim::StateDict>();
  const auto names = [](const optim::StateDict& dict) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : dict) keys.push_back(std::get<std::string>(key));
    return keys;
  };
  const auto& state = *optim::find(inner, optim::StateKey("state"))->get_if<optim::StateDict>();
  const auto& first = *state.front().second.get_if<optim::StateDict>();
  const std::vector<std::string> states = {"step", "exp_avg", "exp_avg_sq", "L", "R", "Q_L", "Q_R"};
  BOOST_TEST(names(first) == states, boost::test_tools::per_element());
  BOOST_TEST(*optim::find(first, optim::StateKey("step"))->get_if<int64_t>() == 1);
  const auto& groups =
      *optim::find(inner, optim::StateKey("param_groups"))->get_if<optim::StateList>();
  const std::vector<std::string> fields = names(*groups.front().get_if<optim::StateDict>());
  for (const char* const field : {"betas", "shampoo_beta", "eps", "weight_decay"}) {
    BOOST_TEST((std::ranges::find(fields, field) != fields.end()), field);
  }
}

// On its owner by name, on the others as another rank's; before anything moved.
BOOST_AUTO_TEST_CASE(a_state_with_nan_is_refused_by_all_ranks_before_anything_moves) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::vector<std::jthread> threads;
  std::vector<std::string> refused(2);
  std::vector<bool> moved(2, false);
  for (size_t process = 0; process < 2; ++process) {
    threads.emplace_back([&, process] {
      const auto optimizer =
          make_optimizer(small_model(1, 5), {2, 2}, groups[process], configs().front());
      const auto step = [&](int64_t number) {
        optimizer->bind_grads(
            [&](const optim::ParamInfo& info) { return gradient_of(info, number); });
        optimizer->step();
      };
      step(0);
      for (optim::OptimizedParam* const param : optimizer->get_parameters()) {
        if (param->model.info.name != "decoder.layers.0.mlp.linear_fc1.weight") continue;
        param->state.at("Q_L").mutable_data_ptr<float>()[3] =
            std::numeric_limits<float>::quiet_NaN();
      }
      Outcome before, after;
      const auto collect = [&](Outcome& outcome) {
        for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
          outcome.tensors[param->model.info.name] = optim::master_of(*param).clone();
        }
      };
      collect(before);
      try {
        step(1);
      } catch (const ckpt::Error& error) {
        refused[process] = error.where().key + ": " + error.problem();
      }
      collect(after);
      for (const auto& [name, tensor] : before.tensors) {
        if (!same_bits(tensor, after.tensors.at(name))) moved[process] = true;
      }
    });
  }
  threads.clear();
  std::ranges::sort(refused);
  BOOST_TEST(refused[0] == ": no step can begin from a state of another rank");
  BOOST_TEST(refused[1] == "Q_L.decoder.layers.0.mlp.linear_fc1.weight: holds NaN");
  BOOST_TEST((!moved[0] && !moved[1]));
}

BOOST_AUTO_TEST_SUITE_END()
