#include <optim/optimizer_config.h>

#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "optim/expect_error.h"

namespace {

using ckpt::DType;
using ckpt::ErrorCode;
using optim::OptimizerConfig;

using Change = std::function<void(OptimizerConfig&)>;

OptimizerConfig changed(const Change& change) {
  OptimizerConfig config{.lr = 0.01};
  change(config);
  return config;
}

struct Refusal {
  std::string field;
  Change change;
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer_config)

// Field by field: Megatron-Core's documented defaults.
BOOST_AUTO_TEST_CASE(defaults_are_the_documented_ones) {
  const auto expected = nlohmann::json::parse(R"({
    "lr": null, "min_lr": null, "decoupled_lr": null, "decoupled_min_lr": null,
    "weight_decay": 0.01, "apply_wd_to_qk_layernorm": false,
    "fp8_recipe": null, "fp16": false, "bf16": false, "reuse_grad_buf_for_mxfp8_param_ag": false,
    "params_dtype": "float32", "use_precision_aware_optimizer": false,
    "store_param_remainders": true, "main_grads_dtype": "float32", "main_params_dtype": "float32",
    "exp_avg_dtype": "float32", "exp_avg_sq_dtype": "float32", "optimizer": "adam",
    "loss_scale": null, "initial_loss_scale": 4294967296.0, "min_loss_scale": 1.0,
    "loss_scale_window": 1000.0, "hysteresis": 2,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-08, "decoupled_weight_decay": true,
    "sgd_momentum": 0.9,
    "muon_momentum": 0.95, "muon_split_qkv": true, "muon_nesterov": false,
    "muon_scale_mode": "spectral", "muon_fp32_matmul_prec": "medium",
    "muon_coefficient_type": "quintic", "muon_num_ns_steps": 5, "muon_tp_mode": "blockwise",
    "muon_extra_scale_factor": 1.0, "muon_scalar_optimizer": "adam",
    "lion_beta1": 0.95, "lion_beta2": 0.98,
    "soap_shampoo_beta": 0.95, "soap_precondition_frequency": 1, "soap_use_kl_shampoo": true,
    "adaptive_muon_moment2_method": "adamuon", "adaptive_muon_beta2": 0.95,
    "adaptive_muon_eps": 1e-08,
    "use_distributed_optimizer": false, "use_layer_wise_distributed_optimizer": false,
    "overlap_param_gather": false, "overlap_param_gather_with_optimizer_step": false,
    "optimizer_cpu_offload": false, "optimizer_offload_fraction": 0.0,
    "use_torch_optimizer_for_cpu_offload": false, "overlap_cpu_optimizer_d2h_h2d": false,
    "pin_cpu_grads": true, "pin_cpu_params": true,
    "clip_grad": 1.0, "log_num_zeros_in_grad": false, "barrier_with_L1_time": false,
    "config_logger_dir": "", "optimizer_cuda_graph": false})");
  const auto actual = nlohmann::json::parse(to_json(OptimizerConfig{}));
  for (const auto& [field, value] : expected.items()) {
    BOOST_TEST(actual.at(field) == value, field << " is " << actual.at(field));
  }
  BOOST_TEST(actual.size() == expected.size());
}

BOOST_AUTO_TEST_CASE(the_aliases_are_the_same_type) {
  BOOST_TEST((std::is_same_v<optim::AdamOptimizerConfig, OptimizerConfig>));
  BOOST_TEST((std::is_same_v<optim::SGDOptimizerConfig, OptimizerConfig>));
}

BOOST_AUTO_TEST_CASE(json_keeps_every_field) {
  // Every field differs from its default, so that one that is not carried shows.
  auto json = nlohmann::ordered_json::parse(to_json(OptimizerConfig{}));
  for (auto& [field, value] : json.items()) {
    if (value.is_boolean())
      value = !value.get<bool>();
    else if (value.is_number_integer())
      value = value.get<int64_t>() + 1;
    else if (value.is_number())
      value = 0.1 + value.get<double>() / 3;
    else if (value.is_null())
      value = 1.0 / 3;
  }
  json["fp8_recipe"] = "mxfp8";
  json["config_logger_dir"] = "a \"folder\"";
  json["optimizer"] = "lion";
  json["params_dtype"] = json["main_grads_dtype"] = json["main_params_dtype"] = "bfloat16";
  json["exp_avg_dtype"] = json["exp_avg_sq_dtype"] = "float8_e4m3fn";
  json["muon_scale_mode"] = "shape_scaling";
  json["muon_fp32_matmul_prec"] = "high";
  json["muon_coefficient_type"] = "polar_express";
  json["muon_tp_mode"] = "distributed";
  json["muon_scalar_optimizer"] = "lion";
  json["adaptive_muon_moment2_method"] = "namo";
  const OptimizerConfig config = optim::optimizer_config_from_json(json.dump());
  BOOST_TEST(nlohmann::ordered_json::parse(to_json(config)) == json);
  BOOST_TEST(*config.lr == 1.0 / 3);
  BOOST_TEST((config.exp_avg_dtype == DType::Float8E4M3FN));
}

BOOST_AUTO_TEST_CASE(json_accepts_torchs_dtype_names_and_integers_as_numbers) {
  const auto config = optim::optimizer_config_from_json(
      R"({"params_dtype": "torch.bfloat16", "lr": 1, "loss_scale_window": 5})");
  BOOST_TEST((config.params_dtype == DType::BFloat16));
  BOOST_TEST(*config.lr == 1.0);
  BOOST_TEST(config.loss_scale_window == 5.0);
}

BOOST_AUTO_TEST_CASE(json_with_an_unknown_field_or_a_wrong_type_is_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"learning_rate", R"({"learning_rate": 1})"},
      {"lr", R"({"lr": "0.1"})"},
      {"bf16", R"({"bf16": 1})"},
      {"hysteresis", R"({"hysteresis": 2.5})"},
      {"hysteresis", R"({"hysteresis": 18446744073709551615})"},
      {"optimizer", R"({"optimizer": null})"},
      {"params_dtype", R"({"params_dtype": "float33"})"},
      {"muon_scale_mode", R"({"muon_scale_mode": "Spectral"})"},
      {"", "[]"},
      {"", "{\"lr\": "}};
  for (const auto& [field, text] : rows) {
    expect_error(ErrorCode::InvalidArgument, field,
                 [&] { optim::optimizer_config_from_json(text); });
  }
}

BOOST_AUTO_TEST_CASE(numbers_that_json_has_not_are_not_written) {
  expect_error(ErrorCode::InvalidArgument, "clip_grad",
               [] { optim::to_json({.clip_grad = std::numeric_limits<double>::infinity()}); });
}

BOOST_AUTO_TEST_CASE(what_the_replay_of_a_layer_wise_checkpoint_needs_is_accepted) {
  OptimizerConfig{}.validate();
  OptimizerConfig{.decoupled_weight_decay = false}.validate();
  OptimizerConfig{.lr = 0.01,
                  .min_lr = 0.001,
                  .decoupled_lr = 0.5,
                  .decoupled_min_lr = 0.25,
                  .bf16 = true,
                  .params_dtype = DType::BFloat16,
                  .optimizer = "muon",
                  .muon_fp32_matmul_prec = optim::MatmulPrecision::Highest,
                  .use_layer_wise_distributed_optimizer = true,
                  .log_num_zeros_in_grad = true,
                  .barrier_with_L1_time = true}
      .validate();
}

BOOST_AUTO_TEST_CASE(values_that_make_no_sense_are_refused_with_the_field) {
  const std::vector<Refusal> rows = {
      {"lr", [](auto& c) { c.lr = -1; }},
      {"lr", [](auto& c) { c.lr = kNan; }},
      {"min_lr", [](auto& c) { c.min_lr = 0.02; }},
      {"decoupled_min_lr", [](auto& c) { c.decoupled_min_lr = 0.5; }},
      {"decoupled_min_lr", [](auto& c) { c.decoupled_lr = 0.1, c.decoupled_min_lr = 0.5; }},
      {"weight_decay", [](auto& c) { c.weight_decay = -0.1; }},
      {"bf16", [](auto& c) { c.bf16 = c.fp16 = true; }},
      {"params_dtype", [](auto& c) { c.params_dtype = DType::Int8; }},
      {"params_dtype", [](auto& c) { c.params_dtype = DType::BFloat16; }},
      {"params_dtype", [](auto& c) { c.bf16 = true, c.params_dtype = DType::Float16; }},
      {"params_dtype", [](auto& c) { c.fp16 = true, c.params_dtype = DType::BFloat16; }},
      {"main_grads_dtype", [](auto& c) { c.main_grads_dtype = DType::BFloat16; }},
      {"main_params_dtype", [](auto& c) { c.main_params_dtype = DType::BFloat16; }},
      {"exp_avg_dtype", [](auto& c) { c.exp_avg_dtype = DType::BFloat16; }},
      {"exp_avg_sq_dtype", [](auto& c) { c.exp_avg_sq_dtype = DType::BFloat16; }},
      {"main_grads_dtype",
       [](auto& c) {
         c.use_precision_aware_optimizer = true, c.main_grads_dtype = DType::Float16;
       }},
      {"main_params_dtype",
       [](auto& c) {
         c.use_precision_aware_optimizer = c.bf16 = true;
         c.main_params_dtype = DType::BFloat16;
       }},
      {"main_params_dtype",
       [](auto& c) {
         c.use_precision_aware_optimizer = true, c.main_params_dtype = DType::Float16;
       }},
      {"exp_avg_dtype",
       [](auto& c) { c.use_precision_aware_optimizer = true, c.exp_avg_dtype = DType::Float64; }},
      {"exp_avg_sq_dtype",
       [](auto& c) { c.use_precision_aware_optimizer = true, c.exp_avg_sq_dtype = DType::Int8; }}};
  for (const auto& [field, change] : rows) {
    expect_error(ErrorCode::InvalidArgument, field, [&] { changed(change).validate(); });
  }
}

BOOST_AUTO_TEST_CASE(coefficients_that_make_no_sense_are_refused_with_the_field) {
  const std::vector<Refusal> rows = {
      {"optimizer", [](auto& c) { c.optimizer = "adamw"; }},
      {"loss_scale", [](auto& c) { c.fp16 = true, c.loss_scale = 0; }},
      {"loss_scale", [](auto& c) { c.loss_scale = 128; }},
      {"initial_loss_scale", [](auto& c) { c.initial_loss_scale = -1; }},
      {"min_loss_scale", [](auto& c) { c.min_loss_scale = 0; }},
      {"min_loss_scale", [](auto& c) { c.initial_loss_scale = 8, c.min_loss_scale = 16; }},
      {"loss_scale_window", [](auto& c) { c.loss_scale_window = 0; }},
      {"hysteresis", [](auto& c) { c.hysteresis = 0; }},
      {"adam_beta1", [](auto& c) { c.adam_beta1 = 1; }},
      {"adam_beta2", [](auto& c) { c.adam_beta2 = -0.1; }},
      {"adam_eps", [](auto& c) { c.adam_eps = -1; }},
      {"sgd_momentum", [](auto& c) { c.sgd_momentum = 1.5; }},
      {"muon_momentum", [](auto& c) { c.muon_momentum = 1; }},
      {"muon_num_ns_steps", [](auto& c) { c.muon_num_ns_steps = 0; }},
      {"muon_num_ns_steps",
       [](auto& c) { c.muon_num_ns_steps = optim::kNewtonSchulzStepsMax + 1; }},
      {"muon_num_ns_steps",
       [](auto& c) {
         c.muon_coefficient_type = optim::NsCoefficients::Cubic5, c.muon_num_ns_steps = 6;
       }},
      {"muon_coefficient_type",
       [](auto& c) { c.muon_coefficient_type = optim::NsCoefficients::Custom; }},
      {"muon_extra_scale_factor", [](auto& c) { c.muon_extra_scale_factor = kNan; }},
      {"muon_scalar_optimizer", [](auto& c) { c.muon_scalar_optimizer = "sgd"; }},
      {"lion_beta1", [](auto& c) { c.lion_beta1 = 1; }},
      {"lion_beta2", [](auto& c) { c.lion_beta2 = 1; }},
      {"soap_shampoo_beta", [](auto& c) { c.soap_shampoo_beta = 1; }},
      {"soap_precondition_frequency", [](auto& c) { c.soap_precondition_frequency = 0; }},
      {"adaptive_muon_beta2", [](auto& c) { c.adaptive_muon_beta2 = 1; }},
      {"adaptive_muon_eps", [](auto& c) { c.adaptive_muon_eps = -1; }},
      {"use_distributed_optimizer",
       [](auto& c) {
         c.use_distributed_optimizer = c.use_layer_wise_distributed_optimizer = true;
       }},
      {"overlap_param_gather_with_optimizer_step",
       [](auto& c) { c.overlap_param_gather_with_optimizer_step = true; }},
      {"optimizer_offload_fraction", [](auto& c) { c.optimizer_offload_fraction = 1.5; }},
      {"clip_grad", [](auto& c) { c.clip_grad = -1; }}};
  for (const auto& [field, change] : rows) {
    expect_error(ErrorCode::InvalidArgument, field, [&] { changed(change).validate(); });
  }
}

BOOST_AUTO_TEST_CASE(what_this_version_cannot_do_is_refused_with_the_field) {
  const std::vector<Refusal> rows = {
      {"fp8_recipe", [](auto& c) { c.fp8_recipe = "delayed"; }},
      {"reuse_grad_buf_for_mxfp8_param_ag",
       [](auto& c) { c.reuse_grad_buf_for_mxfp8_param_ag = true; }},
      {"use_distributed_optimizer",
       [](auto& c) { c.optimizer = "muon", c.use_distributed_optimizer = true; }},
  };
  for (const auto& [field, change] : rows) {
    expect_error(ErrorCode::Unsupported, field, [&] { changed(change).validate(); });
  }
}

BOOST_AUTO_TEST_CASE(what_the_reference_refuses_and_we_can_do_is_accepted) {
  for (const Change& change : std::vector<Change>{
           [](auto& c) { c.optimizer = "lion"; },
           [](auto& c) { c.optimizer = "muon", c.fp16 = true; },
           [](auto& c) { c.optimizer = "muon", c.use_layer_wise_distributed_optimizer = true; },
           [](auto& c) { c.optimizer_cpu_offload = true, c.decoupled_weight_decay = false; },
           [](auto& c) { c.optimizer_cpu_offload = c.use_layer_wise_distributed_optimizer = true; },
           [](auto& c) {
             c.optimizer = "muon";
             c.bf16 = c.use_precision_aware_optimizer = true;
             c.exp_avg_dtype = DType::UInt8;
           }}) {
    changed(change).validate();
    BOOST_CHECK_THROW(changed(change).validate(optim::ReferenceRules{}), ckpt::Error);
  }
}

BOOST_AUTO_TEST_CASE(reference_rules_refuse_what_the_reference_refuses) {
  const std::vector<Refusal> rows = {
      {"use_precision_aware_optimizer",
       [](auto& c) { c.optimizer = "muon", c.bf16 = c.use_precision_aware_optimizer = true; }},
      {"use_precision_aware_optimizer", [](auto& c) { c.use_precision_aware_optimizer = true; }},
      {"optimizer", [](auto& c) { c.optimizer = "lion"; }},
      {"optimizer", [](auto& c) { c.optimizer = "adaptive_muon"; }},
      {"fp16", [](auto& c) { c.optimizer = "muon", c.fp16 = true; }},
      {"bf16",
       [](auto& c) { c.optimizer = "muon", c.use_layer_wise_distributed_optimizer = true; }},
      {"optimizer_cpu_offload",
       [](auto& c) { c.optimizer_cpu_offload = true, c.decoupled_weight_decay = false; }},
      {"optimizer_cpu_offload",
       [](auto& c) { c.optimizer_cpu_offload = c.use_layer_wise_distributed_optimizer = true; }}};
  for (const auto& [field, change] : rows) {
    expect_error(ErrorCode::Unsupported, field,
                 [&] { changed(change).validate(optim::ReferenceRules{}); });
  }
  expect_error(ErrorCode::InvalidArgument, "exp_avg_dtype", [] {
    changed([](auto& c) { c.exp_avg_dtype = DType::Float16; }).validate(optim::ReferenceRules{});
  });
}

BOOST_AUTO_TEST_CASE(reference_rules_accept_what_only_the_reference_can_do) {
  for (const Change& change : std::vector<Change>{
           [](auto& c) { c.optimizer = "sgd"; }, [](auto& c) { c.fp16 = true; },
           [](auto& c) { c.optimizer = "muon", c.muon_scalar_optimizer = "lion"; },
           [](auto& c) { c.optimizer = "soap"; },
           [](auto& c) { c.use_distributed_optimizer = c.use_precision_aware_optimizer = true; },
           [](auto& c) {
             c.use_distributed_optimizer = c.use_precision_aware_optimizer = true;
             c.optimizer_cpu_offload = c.overlap_cpu_optimizer_d2h_h2d = true;
             c.use_torch_optimizer_for_cpu_offload = true;
             c.optimizer_offload_fraction = 1;
           },
           [](auto& c) { c.optimizer = "sgd", c.optimizer_cpu_offload = true; }}) {
    changed(change).validate(optim::ReferenceRules{});
  }
}

BOOST_AUTO_TEST_CASE(the_derived_precision_flag_follows_the_documented_condition) {
  OptimizerConfig config;
  BOOST_TEST(!config.use_precision_aware_optimizer_no_fp8_or_ds_fp8());
  config.use_precision_aware_optimizer = true;
  BOOST_TEST(config.use_precision_aware_optimizer_no_fp8_or_ds_fp8());
  config.fp8_recipe = "delayed";
  BOOST_TEST(config.use_precision_aware_optimizer_no_fp8_or_ds_fp8());
  config.fp8_recipe = "mxfp8";
  BOOST_TEST(!config.use_precision_aware_optimizer_no_fp8_or_ds_fp8());
  config.main_params_dtype = DType::Float16;
  BOOST_TEST(config.use_precision_aware_optimizer_no_fp8_or_ds_fp8());
}

BOOST_AUTO_TEST_SUITE_END()
