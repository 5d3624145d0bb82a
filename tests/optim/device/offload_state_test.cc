// The state of an optimizer that offloads: the same whatever the fraction, and it goes from one
// fraction to another.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <optim/distributed_optimizer.h>

#include "offload_runs.h"
#include "optim/step/range_runs.h"

namespace {

std::string bytes_of_state(optim::LayerWiseDistributedOptimizer& optimizer) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("offload_state_" + std::to_string(::getpid()) + ".pt");
  optimizer.save_state_dict_to_file(file);
  std::ifstream stream(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  std::filesystem::remove(file);
  return bytes;
}

const Offload kFractions[] = {{0}, {0.3, true}, {0.5}, {1, true}};

}  // namespace

BOOST_AUTO_TEST_SUITE(offload_state)

BOOST_AUTO_TEST_CASE(its_bytes_are_the_same_whatever_the_fraction) {
  for (const OffloadRule& rule : offload_rules()) {
    const LayerWisePtr plain = make_offloading(rule, Types::Mixed, nullptr);
    run_steps(*plain, 0, 2);
    const std::string expected = bytes_of_state(*plain);
    for (const Offload& offload : kFractions) {
      const LayerWisePtr optimizer = make_offloading(rule, Types::Mixed, &offload);
      run_steps(*optimizer, 0, 2);
      BOOST_TEST((bytes_of_state(*optimizer) == expected), rule.name << ", " << offload);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_state_of_one_fraction_goes_on_at_another) {
  const OffloadRule adam = offload_rules().front();
  for (const Types types : {Types::Mixed, Types::FP32}) {
    const LayerWisePtr whole = make_offloading(adam, types, nullptr);
    run_steps(*whole, 0, 2);
    const OffloadOutcome expected = run_steps(*whole, 2, 5);
    for (const Offload& before : kFractions) {
      const LayerWisePtr first = make_offloading(adam, types, &before);
      run_steps(*first, 0, 2);
      for (const Offload& after : kFractions) {
        const LayerWisePtr second = make_offloading(adam, types, &after);
        for (size_t i = 0; i < first->all_params().size(); ++i) {
          at::Tensor(second->all_params()[i].param).copy_(first->all_params()[i].param);
        }
        run_steps(*second, 2, 3);  // into a state that is there already
        for (size_t i = 0; i < first->all_params().size(); ++i) {
          at::Tensor(second->all_params()[i].param).copy_(first->all_params()[i].param);
        }
        second->load_state_dict(first->state_dict());
        expect_same_steps(run_steps(*second, 2, 5), expected);
      }
    }
  }
}

// As the reference, whose optimizer that offloads knows no other types of states.
BOOST_AUTO_TEST_CASE(masters_and_moments_are_fp32_whatever_a_precision_aware_optimizer_asks_for) {
  const OffloadRule aware = {"adam in fp8", [](optim::OptimizerConfig& config) {
                               config.optimizer = "adam";
                               config.use_precision_aware_optimizer = true;
                               config.exp_avg_dtype = ckpt::DType::UInt8;
                               config.exp_avg_sq_dtype = ckpt::DType::BFloat16;
                             }};
  const LayerWisePtr plain = make_offloading(offload_rules().front(), Types::BF16, nullptr);
  const auto bind = [](optim::LayerWiseDistributedOptimizer& optimizer) {
    optimizer.bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
    optimizer.step();
  };
  bind(*plain);
  for (const Offload& offload : kFractions) {
    const LayerWisePtr optimizer = make_offloading(aware, Types::BF16, &offload);
    bind(*optimizer);
    const auto params = optimizer->get_parameters(), expected = plain->get_parameters();
    for (size_t i = 0; i < params.size(); ++i) {
      BOOST_TEST(params[i]->packed_state.empty());
      BOOST_TEST(same_bits(params[i]->main_param, expected[i]->main_param));
      BOOST_TEST(same_bits(params[i]->model.param, expected[i]->model.param));
    }
  }
}

// Ranges of elements are stepped on the CPU only, where nothing is to be offloaded.
BOOST_AUTO_TEST_CASE(a_distributed_optimizer_on_the_cpu_steps_as_without) {
  std::vector<std::vector<at::Tensor>> found;
  for (const bool offloads : {false, true}) {
    Setup setup;
    setup.config.optimizer_cpu_offload = offloads;
    setup.config.optimizer_offload_fraction = 0.5;
    setup.config.overlap_cpu_optimizer_d2h_h2d = offloads;
    setup.config.use_distributed_optimizer = true;
    const auto optimizer = make_distributed(setup, {});
    for (int64_t step = 0; step < 2; ++step) {
      optimizer->bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, step); });
      BOOST_TEST(optimizer->step().update_successful);
    }
    std::vector<at::Tensor>& tensors = found.emplace_back();
    for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
      BOOST_TEST(!param->is_offloaded);
      tensors.push_back(optim::master_of(*param));
      for (const auto& [name, state] : optim::state_of(*param)) tensors.push_back(state);
    }
  }
  BOOST_TEST(std::ranges::equal(found[0], found[1], same_bits));
}

BOOST_AUTO_TEST_SUITE_END()
