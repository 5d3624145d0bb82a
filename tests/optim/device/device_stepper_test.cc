#include "step/device/device_stepper.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <optim/mixed_precision.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "host_step.h"
#include "optim/expect_error.h"
#include "step/device/device_ops.h"

namespace {

using namespace optim;

// Two weights, the second a fused qkv weight, and a bias, the same for the same type.
std::vector<Param> make_params(at::ScalarType type) {
  std::vector<Param> params;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"first.weight", {12, 20}}, {"linear_qkv.weight", {24, 10}}, {"first.bias", {37}}};
  at::manual_seed(3);
  for (const auto& [name, shape] : shapes) {
    Param param;
    param.info.name = name;
    param.info.shape = shape;
    param.info.attributes.is_qkv = name == "linear_qkv.weight";
    param.info.dtype = type == at::kFloat ? ckpt::DType::Float32 : ckpt::DType::BFloat16;
    param.param = at::randn(shape).to(type);
    param.main_grad = at::randn(shape).to(type);
    params.push_back(std::move(param));
  }
  return params;
}

struct Case {
  const char* name;
  std::function<void(OptimizerConfig&)> configure;
  at::ScalarType type;
  double tolerance;  // of each master's change, relative Frobenius; 0: the same bits
  AdamArithmetic arithmetic = AdamArithmetic::Torch;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

// AdamW: LibTorch's square root may differ in the last bit; products sum in another order.
const Case kCases[] = {
    {"adamw", [](OptimizerConfig& c) { c.optimizer = "adam"; }, at::kBFloat16, 1e-5},
    {"adamw, fp32", [](OptimizerConfig& c) { c.optimizer = "adam"; }, at::kFloat, 1e-5},
    {"adamw, fp8 and fp16 states",
     [](OptimizerConfig& c) {
       c.optimizer = "adam";
       c.use_precision_aware_optimizer = true;
       c.main_grads_dtype = ckpt::DType::BFloat16;
       c.exp_avg_dtype = ckpt::DType::UInt8;
       c.exp_avg_sq_dtype = ckpt::DType::Float16;
     },
     at::kBFloat16, 1e-5},
    {"adamw, remainders, bf16 states",
     [](OptimizerConfig& c) {
       c.optimizer = "adam";
       c.use_precision_aware_optimizer = true;
       c.store_param_remainders = true;
       c.main_grads_dtype = ckpt::DType::BFloat16;
       c.exp_avg_dtype = c.exp_avg_sq_dtype = ckpt::DType::BFloat16;
     },
     at::kBFloat16, 1e-5},
    {"sgd", [](OptimizerConfig& c) { c.optimizer = "sgd"; }, at::kBFloat16, 0},
    {"sgd without momentum",
     [](OptimizerConfig& c) {
       c.optimizer = "sgd";
       c.sgd_momentum = 0;
     },
     at::kBFloat16, 0},
    {"muon",
     [](OptimizerConfig& c) {
       c.optimizer = "muon";
       c.muon_fp32_matmul_prec = MatmulPrecision::Highest;
       c.muon_nesterov = true;
     },
     at::kBFloat16, 1e-4},
    {"muon, lion for the rest",
     [](OptimizerConfig& c) {
       c.optimizer = "muon";
       c.muon_fp32_matmul_prec = MatmulPrecision::Highest;
       c.muon_scalar_optimizer = "lion";
     },
     at::kBFloat16, 1e-4},
    {"fused adam", [](OptimizerConfig& c) { c.optimizer = "adam"; }, at::kBFloat16, 1e-5,
     AdamArithmetic::FusedAdam},
    {"transformer engine", [](OptimizerConfig& c) { c.optimizer = "adam"; }, at::kBFloat16, 0,
     AdamArithmetic::TransformerEngine},
    {"transformer engine, l2",
     [](OptimizerConfig& c) {
       c.optimizer = "adam";
       c.decoupled_weight_decay = false;
     },
     at::kFloat, 0, AdamArithmetic::TransformerEngine},
};

std::unique_ptr<ChainedOptimizer> make_optimizer(const Case& c) {
  OptimizerConfig config;
  config.lr = 0.01;
  config.weight_decay = 0.1;
  config.clip_grad = 0.5;
  config.log_num_zeros_in_grad = true;
  config.bf16 = c.type == at::kBFloat16;
  config.params_dtype = config.bf16 ? ckpt::DType::BFloat16 : ckpt::DType::Float32;
  c.configure(config);
  std::vector<std::unique_ptr<Optimizer>> chain;
  for (auto& groups : make_optimizer_groups(make_params(c.type), config,
                                            {.overrides = get_standard_config_overrides(config),
                                            .qkv_split = QkvSplit{4, 2, 2},
                                            .adam_arithmetic = c.arithmetic})) {
    if (config.bf16) {
      chain.push_back(
          std::make_unique<Float16OptimizerWithFloat16Params>(std::move(groups), config));
    } else {
      chain.push_back(std::make_unique<FP32Optimizer>(std::move(groups), config));
    }
  }
  return std::make_unique<ChainedOptimizer>(std::move(chain), config);
}

double change_of(const at::Tensor& after, const at::Tensor& before) {
  return at::norm(at::sub(after, before)).item<double>();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_stepper)

BOOST_DATA_TEST_CASE(steps_as_the_cpu_does, boost::unit_test::data::make(kCases)) {
  const auto cpu = make_optimizer(sample);
  const auto other = make_optimizer(sample);
  DeviceStepper stepper(other->config(), at::kCPU, host_api());
  const auto before = make_optimizer(sample);
  for (int step = 0; step < 3; ++step) {
    for (OptimizerGroup* const group : cpu->param_groups()) group->lr = 0.01 / (step + 1);
    for (OptimizerGroup* const group : other->param_groups()) group->lr = 0.01 / (step + 1);
    const StepResult result = cpu->step();
    stepper.queue_stats(other->param_groups(), 3, {});
    stepper.queue_update();
    stepper.count_step();
    const kernels::StepControl control = stepper.read_control();
    BOOST_TEST(control.grad_norm == result.grad_norm->get(), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(control.zero_count == result.num_zeros_in_grad->get());
    BOOST_TEST(control.clip < 1);
  }
  const auto expected = cpu->get_parameters();
  const auto found = other->get_parameters();
  const auto start = before->get_parameters();
  BOOST_REQUIRE_EQUAL(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST_CONTEXT(found[i]->model.info.name) {
      const at::Tensor master = master_of(*expected[i]);
      const double change = change_of(master, master_of(*start[i]));
      BOOST_TEST(change > 0);
      BOOST_TEST(change_of(master_of(*found[i]), master) <= sample.tolerance * change);
      BOOST_TEST(found[i]->step == expected[i]->step);
      BOOST_TEST(at::equal(found[i]->model.param,
                           master_of(*found[i]).to(found[i]->model.param.scalar_type())));
      for (const auto& [name, state] : state_of(*expected[i])) {
        BOOST_TEST(at::equal(state_of(*found[i]).at(name), state), name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(replaced_gradients_are_found) {
  const auto optimizer = make_optimizer(kCases[4]);
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  stepper.queue_stats(optimizer->param_groups(), 3, {});
  stepper.queue_update();
  const double first = stepper.read_control().grad_norm;
  optimizer->bind_grads([](const ParamInfo& info) { return at::zeros(info.shape, at::kBFloat16); });
  stepper.queue_stats(optimizer->param_groups(), 3, {});
  stepper.queue_update();
  BOOST_TEST(first > 0);
  BOOST_TEST(stepper.read_control().grad_norm == 0);
}

// Trainers whose framework allocates gradients anew in every step.
BOOST_AUTO_TEST_CASE(gradients_allocated_anew_are_bound_in_place_and_not_kept) {
  const auto optimizer = make_optimizer(kCases[6]);
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  HostStep::made = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> old;
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> kept;  // so that no address comes back at once
    optimizer->bind_grads([&](const ParamInfo& info) {
      at::Tensor grad = at::zeros(info.shape, at::kBFloat16).add_(step);
      kept.push_back(grad);
      return grad;
    });
    stepper.queue_stats(optimizer->param_groups(), 3, {});
    stepper.queue_update();
    stepper.count_step();
    BOOST_TEST((stepper.read_control().grad_norm > 0) == (step > 0));
    for (const at::Tensor& grad : kept) {
      old.emplace_back(grad.storage().getWeakStorageImpl());
    }
  }
  BOOST_TEST(HostStep::made == 1);
  for (size_t i = 0; i + 3 < old.size(); ++i) BOOST_TEST(old[i].expired());
}

BOOST_AUTO_TEST_CASE(an_update_in_parts_has_the_bits_of_one) {
  for (const size_t which : {size_t{2}, size_t{7}}) {
    const auto whole = make_optimizer(kCases[which]), cut = make_optimizer(kCases[which]);
    for (ChainedOptimizer* const optimizer : {whole.get(), cut.get()}) {
      DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
      const bool is_cut = optimizer == cut.get();
      for (int step = 0; step < 2; ++step) {
        const UpdateParts parts = is_cut ? UpdateParts{{2}, {}, {0}} : UpdateParts{};
        stepper.queue_stats(optimizer->param_groups(), 3, {}, parts);
        for (uint32_t part = 0; part < (is_cut ? 3U : 1U); ++part) stepper.queue_update(part);
        stepper.count_step();
      }
    }
    const auto expected = whole->get_parameters(), found = cut->get_parameters();
    for (size_t i = 0; i < found.size(); ++i) {
      BOOST_TEST(at::equal(found[i]->model.param, expected[i]->model.param));
      BOOST_TEST(at::equal(master_of(*found[i]), master_of(*expected[i])));
    }
  }
}

// As a stepper that was made after the change sees them.
BOOST_AUTO_TEST_CASE(changed_scale_modes_and_coefficients_of_muon_take_effect) {
  const std::function<void(MuonRule&)> changes[] = {
      [](MuonRule& muon) { muon.scale_mode = MuonScaleMode::UnitRmsNorm; },
      [](MuonRule& muon) { muon.newton_schulz.coefficients = NsCoefficients::Simple; },
      [](MuonRule& muon) {
        muon.newton_schulz.coefficients = NsCoefficients::Custom;
        muon.newton_schulz.custom = {{2, -1.5, 0.5}, {1.5, -0.5, 0}};
      }};
  for (const auto& change : changes) {
    const auto kept = make_optimizer(kCases[6]), fresh = make_optimizer(kCases[6]),
               unchanged = make_optimizer(kCases[6]);
    for (ChainedOptimizer* const optimizer : {kept.get(), fresh.get(), unchanged.get()}) {
      auto stepper = std::make_unique<DeviceStepper>(optimizer->config(), at::kCPU, host_api());
      for (int step = 0; step < 2; ++step) {
        stepper->queue_stats(optimizer->param_groups(), 3, {});
        stepper->queue_update();
        stepper->count_step();
        if (optimizer == unchanged.get()) continue;
        for (OptimizerGroup* const group : optimizer->param_groups()) {
          if (auto* const muon = group->rule_config.get_if<MuonRule>()) change(*muon);
        }
        if (optimizer != fresh.get()) continue;
        stepper = std::make_unique<DeviceStepper>(optimizer->config(), at::kCPU, host_api());
      }
    }
    const at::Tensor found = master_of(*kept->get_parameters().front());
    BOOST_TEST(at::equal(found, master_of(*fresh->get_parameters().front())));
    BOOST_TEST(!at::equal(found, master_of(*unchanged->get_parameters().front())));
  }
}

BOOST_AUTO_TEST_CASE(mirrored_products_reach_the_kernels_unless_they_are_turned_off) {
  const auto optimizer = make_optimizer(kCases[6]);
  for (OptimizerGroup* const group : optimizer->param_groups()) {
    auto* const muon = group->rule_config.get_if<MuonRule>();
    if (muon == nullptr) continue;
    BOOST_TEST(device_group(*group, 0).muon.mirrored_products);
    muon->newton_schulz.mirrored_products = false;
    BOOST_TEST(!device_group(*group, 0).muon.mirrored_products);
  }
}

BOOST_AUTO_TEST_CASE(rules_without_kernels_are_refused_by_name_before_anything_moves) {
  for (const char* const name : {"soap", "adaptive_muon"}) {
    Case sample = kCases[6];
    sample.configure = [](OptimizerConfig& config) { config.optimizer = "muon"; };
    const auto optimizer = make_optimizer(sample);
    for (OptimizerGroup* const group : optimizer->param_groups()) {
      if (group->rule_config.name() != "muon") continue;
      group->rule_config = rule_named(name).defaults();
      group->rule = make_rule(group->rule_config);
    }
    DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
    expect_error(ckpt::ErrorCode::Unsupported, "optimizer",
                 [&] { stepper.queue_stats(optimizer->param_groups(), 3, {}); });
    for (const OptimizedParam* const param : optimizer->get_parameters()) {
      BOOST_TEST(param->state.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(parameters_without_gradients_neither_move_nor_count) {
  const auto optimizer = make_optimizer(kCases[0]);
  OptimizedParam& idle = *optimizer->get_parameters().front();
  idle.model.main_grad = at::Tensor();
  const at::Tensor before = idle.main_param.clone();
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  stepper.queue_stats(optimizer->param_groups(), 3, {});
  stepper.queue_update();
  stepper.count_step();
  BOOST_TEST(idle.step == 0);
  BOOST_TEST(at::equal(idle.main_param, before));
  BOOST_TEST(optimizer->get_parameters().back()->step == 1);
}

BOOST_AUTO_TEST_CASE(overflow_under_loss_scaling_changes_nothing) {
  const auto optimizer = make_optimizer(kCases[0]);
  OptimizedParam& param = *optimizer->get_parameters().front();
  param.model.main_grad.view({-1})[0] = std::numeric_limits<float>::infinity();
  const at::Tensor before = param.main_param.clone();
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  stepper.queue_stats(optimizer->param_groups(), 3,
                      {.inverse_loss_scale = 0.5F, .check_finite = true});
  stepper.queue_update();
  BOOST_TEST(stepper.read_control().skip == 1U);
  BOOST_TEST(at::equal(param.main_param, before));
}

BOOST_AUTO_TEST_CASE(results_are_those_of_their_own_step) {
  const auto optimizer = make_optimizer(kCases[4]);
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  stepper.queue_stats(optimizer->param_groups(), 3, {});
  stepper.queue_update();
  const auto first = stepper.deferred_control();
  stepper.queue_stats(optimizer->param_groups(), 3, {.inverse_loss_scale = 0.5F});
  stepper.queue_update();
  const auto second = stepper.deferred_control();
  BOOST_TEST(first().grad_norm == 2 * second().grad_norm, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(a_graph_is_recorded_on_a_device_and_refused_on_the_cpu) {
  Case recorded = kCases[4];
  recorded.configure = [](OptimizerConfig& c) {
    c.optimizer = "sgd";
    c.optimizer_cuda_graph = true;
  };
  const auto optimizer = make_optimizer(recorded);
  HostStep::captures = 0;
  DeviceStepper stepper(optimizer->config(), at::kCPU, host_api());
  for (int step = 0; step < 3; ++step) {
    stepper.queue_stats(optimizer->param_groups(), 3, {});
    stepper.queue_update();
    stepper.count_step();
  }
  BOOST_TEST(HostStep::captures == 1);
  try {
    optimizer->step();
    BOOST_ERROR("was not refused");
  } catch (const ckpt::Error& error) {
    BOOST_TEST((error.code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(error.where().key == "optimizer_cuda_graph");
  }
}

BOOST_AUTO_TEST_CASE(a_machine_without_a_gpu_says_why_in_one_line) {
  if (cuda_problem() == nullptr) return;
  BOOST_TEST(std::string(cuda_problem()).find('\n') == std::string::npos);
  try {
    device_api(at::Device(at::kCUDA, 0));
    BOOST_ERROR("was not refused");
  } catch (const ckpt::Error& error) {
    BOOST_TEST((error.code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(error.problem() == cuda_problem());
  }
}

BOOST_AUTO_TEST_SUITE_END()
