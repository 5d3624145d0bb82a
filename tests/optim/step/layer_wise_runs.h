#pragma once

#include <ATen/Parallel.h>
#include <ckpt/error.h>
#include <optim/layer_wise_optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "optim/step/tensors.h"

inline constexpr optim::QkvSplit kSplit = {4, 2, 2};

struct Layout {
  uint32_t ranks = 1;
  int processes = 1;
  optim::OwnershipPolicy policy = optim::OwnershipPolicy::PingPong;
  bool overlaps = false;  // overlap_param_gather
  bool adopts = false;    // adopt_param_buffers()
  int64_t bucket_bytes = int64_t{16} << 20;
};

using MakeModel = std::function<std::vector<optim::Param>()>;

inline optim::MegatronOptimizerOptions options_of(const Layout& layout,
                                                  optim::ProcessGroupCollection groups) {
  optim::MegatronOptimizerOptions options;
  options.groups = std::move(groups);
  options.qkv_split = kSplit;
  options.layer_wise.layout_ranks = layout.ranks;
  options.layer_wise.ownership = layout.policy;
  options.layer_wise.gather_bucket_bytes = layout.bucket_bytes;
  return options;
}

inline std::unique_ptr<optim::LayerWiseDistributedOptimizer> make_optimizer_with(
    std::vector<optim::Param> params, const Layout& layout,
    const optim::MegatronOptimizerOptions& options, optim::OptimizerConfig config) {
  config.overlap_param_gather = layout.overlaps;
  auto optimizer = optim::get_megatron_optimizer(config, std::move(params), options);
  if (layout.adopts) optimizer->adopt_param_buffers();
  return optimizer;
}

inline std::unique_ptr<optim::LayerWiseDistributedOptimizer> make_optimizer(
    std::vector<optim::Param> params, const Layout& layout, optim::ProcessGroupCollection groups,
    const optim::OptimizerConfig& config = muon_config()) {
  return make_optimizer_with(std::move(params), layout, options_of(layout, std::move(groups)),
                             config);
}

// What must be the same bits whatever the layout.
struct Outcome {
  std::vector<double> norms;
  std::vector<int64_t> zeros;
  std::map<std::string, at::Tensor> tensors;  // parameters, masters and states by name
};

inline void collect_owned(optim::LayerWiseDistributedOptimizer& optimizer, Outcome& outcome) {
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    const std::string& name = param->model.info.name;
    outcome.tensors["master." + name] = optim::master_of(*param).cpu().clone();
    for (const auto& [state, tensor] : optim::state_of(*param)) {
      outcome.tensors[state + "." + name] = tensor.cpu().clone();
    }
  }
}

// What is run in every layout.
struct Run {
  MakeModel make_model;
  optim::OptimizerConfig config = muon_config();
  std::function<void(optim::LayerWiseDistributedOptimizer&)> prepare = {};  // before the first step
  at::Device device = at::kCPU;                                             // of the model
};
inline Run run_of_layers(int layers) {
  return {.make_model = [layers] { return small_model(layers, 17); }};
}

// Three steps of one process of a layout.
inline Outcome run_process(const Layout& layout, const optim::ProcessGroupCollection& groups,
                           const Run& run) {
  const auto optimizer = make_optimizer(run.make_model(), layout, groups, run.config);
  if (run.prepare) run.prepare(*optimizer);
  Outcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer->bind_grads(
        [&](const optim::ParamInfo& info) { return gradient_of(info, step).to(run.device); });
    const optim::StepResult result = optimizer->step();
    if (!result.update_successful) throw std::runtime_error("a step was skipped");
    outcome.norms.push_back(result.grad_norm->get());
    outcome.zeros.push_back(result.num_zeros_in_grad->get());
    optimizer->zero_grad();
  }
  for (const optim::Param& param : optimizer->all_params()) {
    outcome.tensors["model." + param.info.name] = param.param.cpu().clone();
  }
  collect_owned(*optimizer, outcome);
  return outcome;
}

// All processes of a layout, each in a thread, over Gloo; then the owners' states together.
inline std::vector<Outcome> run_layout(const Layout& layout, const Run& run) {
  if (layout.processes == 1) return {run_process(layout, {}, run)};
  const std::vector<optim::ProcessGroupCollection> groups =
      optim::make_in_process_groups(layout.processes, {.network_interface = "lo"});
  std::vector<Outcome> outcomes(groups.size());
  std::vector<std::exception_ptr> errors(groups.size());
  {
    std::vector<std::jthread> threads;
    for (size_t process = 0; process < groups.size(); ++process) {
      threads.emplace_back([&, process] {
        try {
          outcomes[process] = run_process(layout, groups[process], run);
        } catch (...) {
          errors[process] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return outcomes;
}

inline void expect_same(const Outcome& ours, const Outcome& expected) {
  BOOST_TEST(ours.norms == expected.norms, boost::test_tools::per_element());
  BOOST_TEST(ours.zeros == expected.zeros, boost::test_tools::per_element());
  for (const auto& [name, tensor] : ours.tensors) {
    BOOST_TEST(same_bits(tensor, expected.tensors.at(name)), name);
  }
}

struct OneThread {
  int before = at::get_num_threads();
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
};

inline optim::Param bf16_matrix(const std::string& name, int64_t rows, int64_t columns) {
  optim::Param param;
  param.info.name = name;
  param.info.shape = {rows, columns};
  param.info.dtype = ckpt::DType::BFloat16;
  param.param = random_tensor(param.info.shape, 5).to(at::kBFloat16);
  return param;
}

// Runs both processes of a group; returns what each threw.
inline std::array<std::string, 2> run_both(const std::function<void(size_t)>& body) {
  std::array<std::string, 2> errors;
  const auto run = [&](size_t process) {
    try {
      body(process);
    } catch (const ckpt::Error& error) {
      errors[process] = error.what();
    }
  };
  { const std::jthread first(run, 0), second(run, 1); }
  return errors;
}
