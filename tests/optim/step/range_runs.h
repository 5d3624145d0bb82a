#pragma once

#include <optim/distributed_optimizer.h>

#include <ATen/ops/full.h>

#include <cmath>

#include "optim/step/parallel_runs.h"

// Steps of ranges of elements, and of whole parameters to compare them with.

inline optim::OptimizerConfig adam_config(const std::string& rule = "adam") {
  optim::OptimizerConfig config = muon_config();
  config.optimizer = rule;
  config.use_layer_wise_distributed_optimizer = false;
  config.clip_grad = 0.5;
  return config;
}

// Of any sizes, tensors of one element and of several blocks of a norm among them; one is fp32.
inline std::vector<optim::Param> odd_model() {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> all = {
      {"embedding.word_embeddings.weight", {101, 7}},
      {"decoder.layers.0.input_layernorm.weight", {1}},
      {"decoder.layers.0.self_attention.linear_proj.weight", {257, 131}},
      {"decoder.layers.0.self_attention.linear_proj.bias", {131}},
      {"decoder.layers.0.mlp.router.expert_bias", {3}},
      {"decoder.layers.0.mlp.linear_fc1.weight", {40, 999}},
      {"decoder.final_layernorm.weight", {65}}};
  std::vector<optim::Param> params;
  uint64_t seed = 29;
  for (const auto& [name, shape] : all) {
    optim::Param param;
    const bool is_fp32 = name.find("expert_bias") != std::string::npos;
    param.info = {.name = name, .shape = shape, .dtype = ckpt::DType::BFloat16};
    param.info.attributes = optim::megatron_attributes(name, shape.size());
    param.param = random_tensor(shape, seed++, 0.5);
    if (!is_fp32) param.param = param.param.to(at::kBFloat16);
    if (is_fp32) param.info.dtype = ckpt::DType::Float32;
    params.push_back(std::move(param));
  }
  return params;
}

struct Setup {
  optim::OptimizerConfig config = adam_config();
  MakeModel make_model = odd_model;
  std::optional<uint64_t> bucket_elements = {};
  int64_t gather_bucket_bytes = 4096;
  std::function<at::Tensor(const optim::ParamInfo&, int64_t step)> grad_of = gradient_of;
};

inline std::unique_ptr<optim::DistributedOptimizer> make_distributed(
    const Setup& setup, const optim::ProcessGroupCollection& groups) {
  optim::DistributedOptimizerOptions options;
  options.groups = groups;
  options.bucket_elements = setup.bucket_elements;
  options.gather_bucket_bytes = setup.gather_bucket_bytes;
  options.is_in_first_model_chunk = [](const optim::ParamInfo& info) {
    return info.name.find("fc1") == std::string::npos;
  };
  optim::OptimizerConfig config = setup.config;
  config.use_distributed_optimizer = true;
  return std::make_unique<optim::DistributedOptimizer>(config, setup.make_model(), options);
}

template <class Made>
void take_steps(Made& optimizer, const Setup& setup, Outcome& outcome, int64_t steps = 3) {
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.bind_grads([&](const optim::ParamInfo& info) { return setup.grad_of(info, step); });
    const optim::StepResult result = optimizer.step();
    outcome.norms.push_back(result.grad_norm ? result.grad_norm->get() : -1);
    outcome.zeros.push_back(result.num_zeros_in_grad ? result.num_zeros_in_grad->get() : -1);
  }
  for (const optim::Param& param : optimizer.all_params()) {
    outcome.tensors["model." + param.info.name] = param.param.clone();
  }
}

inline Outcome whole_outcome(const Setup& setup) {
  optim::MegatronOptimizerOptions options;
  options.qkv_split = kSplit;
  const auto optimizer = optim::get_megatron_optimizer(setup.config, setup.make_model(), options);
  Outcome outcome;
  take_steps(*optimizer, setup, outcome);
  collect_owned(*optimizer, outcome);
  return outcome;
}

// Every process's ranges, put where they belong; counts elements that nobody has.
inline void add_ranges(optim::DistributedOptimizer& optimizer, Outcome& outcome, int64_t& missing) {
  for (const optim::OptimizedParam* const range : optimizer.get_parameters()) {
    const optim::Param& whole = optimizer.all_params()[range->id];
    const auto own = optimizer.own_range(range->id);
    missing -= own.count;
    optim::ParamState tensors = optim::state_of(*range);
    tensors["master"] = optim::master_of(*range);
    for (const auto& [name, values] : tensors) {
      at::Tensor& all = outcome.tensors[name + "." + whole.info.name];
      if (!all.defined()) all = at::full(whole.param.sizes(), std::nan(""), at::kFloat);
      all.view({-1}).narrow(0, own.begin, own.count).copy_(values);
    }
  }
}

inline Outcome range_outcome(const Setup& setup, int processes) {
  const auto grid = make_grid({1, processes});
  std::vector<Outcome> outcomes(grid.size());
  std::vector<std::unique_ptr<optim::DistributedOptimizer>> made(grid.size());
  run_ranks(grid.size(), [&](size_t rank) {
    made[rank] = make_distributed(setup, grid[rank]);
    take_steps(*made[rank], setup, outcomes[rank]);
  });
  int64_t missing = 0;
  for (const optim::Param& param : made[0]->all_params()) missing += param.param.numel();
  for (const auto& optimizer : made) add_ranges(*optimizer, outcomes[0], missing);
  BOOST_TEST(missing == 0);
  for (size_t rank = 1; rank < outcomes.size(); ++rank) {
    BOOST_TEST(outcomes[rank].norms == outcomes[0].norms, boost::test_tools::per_element());
    for (const auto& [name, tensor] : outcomes[rank].tensors) {
      BOOST_TEST(same_bits(tensor, outcomes[0].tensors.at(name)), name);
    }
  }
  return outcomes[0];
}

inline void expect_bits_of_whole(const Setup& setup, std::initializer_list<int> counts) {
  const Outcome expected = whole_outcome(setup);
  for (const int processes : counts) {
    BOOST_TEST_CONTEXT(processes << " processes") {
      const Outcome ours = range_outcome(setup, processes);
      BOOST_TEST(ours.tensors.size() == expected.tensors.size());
      expect_same(ours, expected);
    }
  }
}
