#pragma once

#include <optim/layer_wise_optimizer.h>
#include <optim/update_rule.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "host_step.h"
#include "optim/step/layer_wise_runs.h"
#include "step/optimizer/peers_and_device.h"

// Steps of a model whose parameters are partly offloaded, by the kernels' twins on the device.

enum class Types { BF16, Mixed, FP32 };  // of parameters; Mixed: norms are fp32

struct OffloadRule {
  const char* name;
  std::function<void(optim::OptimizerConfig&)> configure;
  bool fused = false;  // TransformerEngine's FusedAdam
};
inline std::ostream& operator<<(std::ostream& out, const OffloadRule& rule) {
  return out << rule.name;
}

inline std::vector<OffloadRule> offload_rules() {
  const auto named = [](const char* rule) {
    return [rule](optim::OptimizerConfig& config) { config.optimizer = rule; };
  };
  return {{"adam", named("adam")},
          {"fused adam", named("adam"), true},
          {"adam, L2",
           [](optim::OptimizerConfig& config) {
             config.optimizer = "adam";
             config.decoupled_weight_decay = false;
           }},
          {"sgd", named("sgd")},
          {"sgd without momentum",
           [](optim::OptimizerConfig& config) {
             config.optimizer = "sgd";
             config.sgd_momentum = 0;
           }},
          {"lion", named("lion")},
          {"muon", named("muon")},
          {"muon and lion", [](optim::OptimizerConfig& config) {
             config.optimizer = "muon";
             config.muon_scalar_optimizer = "lion";
           }}};
}

struct Offload {
  double fraction = 0;
  bool overlaps = false, pins_grads = true, pins_params = true;
};
inline std::ostream& operator<<(std::ostream& out, const Offload& offload) {
  return out << "fraction " << offload.fraction << (offload.overlaps ? ", overlapping" : "")
             << (offload.pins_grads ? "" : ", no pinned grads")
             << (offload.pins_params ? "" : ", no pinned params");
}

inline std::vector<Offload> all_offloads() {
  std::vector<Offload> all;
  for (const double fraction : {0.0, 0.3, 0.5, 1.0}) {
    for (const bool overlaps : {false, true}) {
      for (const bool pins : {false, true}) all.push_back({fraction, overlaps, pins, !pins});
      all.push_back({fraction, overlaps});
    }
  }
  return all;
}

inline std::vector<optim::Param> typed_model(Types types) {
  std::vector<optim::Param> params = small_model(1, 17);
  for (optim::Param& param : params) {
    const bool is_norm = param.info.name.find("layernorm") != std::string::npos;
    if (types == Types::BF16 || (types == Types::Mixed && !is_norm)) continue;
    param.param = param.param.to(at::kFloat);
    param.info.dtype = ckpt::DType::Float32;
  }
  return params;
}

inline optim::OptimizerConfig offload_config(const OffloadRule& rule, Types types,
                                             const Offload* offload) {
  optim::OptimizerConfig config = muon_config();
  config.muon_fp32_matmul_prec = optim::MatmulPrecision::Highest;
  config.bf16 = types != Types::FP32;
  config.params_dtype = config.bf16 ? ckpt::DType::BFloat16 : ckpt::DType::Float32;
  config.clip_grad = 0.5;
  if (config.bf16) config.loss_scale = 2;
  rule.configure(config);
  if (offload == nullptr) return config;
  config.optimizer_cpu_offload = true;
  config.optimizer_offload_fraction = offload->fraction;
  config.overlap_cpu_optimizer_d2h_h2d = offload->overlaps;
  config.pin_cpu_grads = offload->pins_grads;
  config.pin_cpu_params = offload->pins_params;
  return config;
}

inline void set_arithmetic(optim::Optimizer& optimizer, const OffloadRule& rule) {
  for (optim::OptimizerGroup* const group : optimizer.param_groups()) {
    auto* const adam = group->rule_config.get_if<optim::AdamRule>();
    if (adam == nullptr || !rule.fused) continue;
    adam->arithmetic = optim::AdamArithmetic::FusedAdam;
    group->rule = optim::make_rule(group->rule_config);
  }
}

using LayerWisePtr = std::unique_ptr<optim::LayerWiseDistributedOptimizer>;

// `api`: of the device; null: all is on the CPU.
inline LayerWisePtr make_offloading(const OffloadRule& rule, Types types, const Offload* offload,
                                    const kernels::DeviceApi* api = &optim::host_api()) {
  LayerWisePtr optimizer =
      make_optimizer(typed_model(types), {}, {}, offload_config(rule, types, offload));
  set_arithmetic(*optimizer, rule);
  optim::StepInside::of(*optimizer).device_api = api;
  return optimizer;
}

// Gradients of a step, under the loss scale if there is one; some are fp32, others bf16 or fp16.
// Step `overflows_in` has an infinite one.
inline void bind_step(optim::LayerWiseDistributedOptimizer& optimizer, int64_t step,
                      int64_t overflows_in) {
  const double scale = optimizer.config().loss_scale.value_or(1);
  int64_t place = 0;
  optimizer.bind_grads([&](const optim::ParamInfo& info) {
    constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
    at::Tensor grad = gradient_of(info, step).mul_(scale).to(kTypes[place % 3]);
    const bool breaks = optimizer.config().loss_scale && step == overflows_in && place == 2;
    if (breaks) grad.view({-1})[0] = std::numeric_limits<float>::infinity();
    ++place;
    return grad;
  });
}

struct OffloadOutcome {
  Outcome outcome;
  std::vector<bool> updated;
  std::vector<int64_t> counts;
  size_t offloaded = 0, params = 0;
};

// Steps `from` to `to`, of which number 2 is skipped where gradients are scaled.
inline OffloadOutcome run_steps(optim::LayerWiseDistributedOptimizer& optimizer, int64_t from,
                                int64_t to) {
  OffloadOutcome found;
  for (int64_t step = from; step < to; ++step) {
    bind_step(optimizer, step, 2);
    const optim::StepResult result = optimizer.step();
    found.updated.push_back(result.update_successful);
    optimizer.zero_grad();
    if (!result.update_successful) continue;
    found.outcome.norms.push_back(result.grad_norm->get());
    found.outcome.zeros.push_back(result.num_zeros_in_grad->get());
  }
  for (const optim::Param& param : optimizer.all_params()) {
    found.outcome.tensors["model." + param.info.name] = param.param.clone();
  }
  collect_owned(optimizer, found.outcome);
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    found.counts.push_back(param->step);
    found.offloaded += param->is_offloaded ? 1 : 0;
    ++found.params;
  }
  return found;
}

inline void expect_same_steps(const OffloadOutcome& ours, const OffloadOutcome& expected) {
  expect_same(ours.outcome, expected.outcome);
  BOOST_TEST(ours.outcome.tensors.size() == expected.outcome.tensors.size());
  BOOST_TEST((ours.updated == expected.updated));
  BOOST_TEST(ours.counts == expected.counts, boost::test_tools::per_element());
}
