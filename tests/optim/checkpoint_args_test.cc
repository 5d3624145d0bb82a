#include <optim/checkpoint_args.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <boost/test/unit_test.hpp>

#include <ckpt/checkpoint.h>
#include <training/opened_training.h>

#include "optim/expect_error.h"

namespace {

using ckpt::ErrorCode;
using ckpt::NodeId;
using ckpt::ValueTree;

using MakeValue = std::function<NodeId(ValueTree&)>;
using Args = std::vector<std::pair<std::string, MakeValue>>;

MakeValue number(double value) {
  return [=](ValueTree& tree) { return tree.real(value); };
}
MakeValue integer(int64_t value) {
  return [=](ValueTree& tree) { return tree.integer(value); };
}
MakeValue flag(bool value) {
  return [=](ValueTree& tree) { return tree.boolean(value); };
}
MakeValue text(std::string value) {
  return [=](ValueTree& tree) { return tree.str(value); };
}
MakeValue dtype(std::string name) {
  return [=](ValueTree& tree) { return tree.global("torch", name); };
}
NodeId none(ValueTree& tree) { return tree.none(); }

ValueTree state_of(const Args& args) {
  ValueTree tree;
  const NodeId dict = tree.dict();
  for (const auto& [name, make] : args) tree.put(dict, name, make(tree));
  tree.set_root(dict);
  return tree;
}

optim::OptimizerConfig read(const Args& args) {
  return optim::config_from_args(state_of(args).root());
}

// What the fixtures' args say about the optimizer, and some that say nothing about it.
const Args kFixtureArgs = {{"lr", number(0.01)},
                           {"min_lr", number(0.001)},
                           {"decoupled_lr", none},
                           {"weight_decay", number(0.1)},
                           {"fp8", none},
                           {"fp8_recipe", text("delayed")},
                           {"bf16", flag(true)},
                           {"params_dtype", dtype("bfloat16")},
                           {"main_grads_dtype", dtype("float32")},
                           {"optimizer", text("muon")},
                           {"initial_loss_scale", integer(4294967296)},
                           {"muon_momentum", number(0.9)},
                           {"muon_scale_mode", text("spectral")},
                           {"muon_fp32_matmul_prec", text("medium")},
                           {"use_layer_wise_distributed_optimizer", flag(true)},
                           {"log_num_zeros_in_grad", flag(true)},
                           {"barrier_with_L1_time", flag(true)},
                           {"optimizer_offload_fraction", number(1.0)},
                           {"seq_length", integer(32)}};

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint_args)

BOOST_AUTO_TEST_CASE(each_field_is_the_argument_of_its_name_and_absent_ones_keep_their_defaults) {
  const auto config = read(kFixtureArgs);
  BOOST_TEST(*config.lr == 0.01);
  BOOST_TEST(*config.min_lr == 0.001);
  BOOST_TEST(!config.decoupled_lr.has_value());
  BOOST_TEST(config.weight_decay == 0.1);
  BOOST_TEST(config.bf16);
  BOOST_TEST((config.params_dtype == ckpt::DType::BFloat16));
  BOOST_TEST(config.optimizer == "muon");
  BOOST_TEST(config.initial_loss_scale == 4294967296.0);
  BOOST_TEST(config.muon_momentum == 0.9);
  BOOST_TEST((config.muon_fp32_matmul_prec == optim::MatmulPrecision::Medium));
  BOOST_TEST(config.use_layer_wise_distributed_optimizer);
  BOOST_TEST(config.adam_beta2 == 0.999);
  BOOST_TEST(config.muon_num_ns_steps == 5);
  config.validate();
}

BOOST_AUTO_TEST_CASE(an_fp8_recipe_counts_only_where_fp8_is_on) {
  BOOST_TEST(!read(kFixtureArgs).fp8_recipe.has_value());
  BOOST_TEST(!read({{"fp8_recipe", text("mxfp8")}}).fp8_recipe.has_value());
  BOOST_TEST(*read({{"fp8", text("e4m3")}, {"fp8_recipe", text("mxfp8")}}).fp8_recipe == "mxfp8");
}

BOOST_AUTO_TEST_CASE(names_of_megatron_core_0_16_are_understood) {
  const auto config = read({{"optimizer", text("dist_muon")}, {"muon_use_nesterov", flag(true)}});
  BOOST_TEST(config.optimizer == "muon");
  BOOST_TEST(config.use_layer_wise_distributed_optimizer);
  BOOST_TEST(config.muon_nesterov);
  BOOST_TEST(
      !read({{"muon_nesterov", flag(false)}, {"muon_use_nesterov", flag(true)}}).muon_nesterov);
}

BOOST_AUTO_TEST_CASE(arguments_that_make_no_configuration_are_named) {
  const std::vector<std::pair<std::string, MakeValue>> rows = {
      {"muon_num_ns_steps", integer(1000000000)},
      {"muon_num_ns_steps", integer(0)},
      {"muon_momentum", number(1.5)},
      {"adam_eps", number(-1)},
      {"lr", number(-0.1)},
      {"optimizer", text("adamw")}};
  for (const auto& [field, make] : rows) {
    const ValueTree args = state_of({{field, make}});
    expect_error(ckpt::ErrorCode::InvalidArgument, field,
                 [&] { optim::config_from_args(args.root()).validate(); });
  }
  const ValueTree fp8 = state_of({{"fp8", text("hybrid")}, {"fp8_recipe", text("delayed")}});
  expect_error(ckpt::ErrorCode::Unsupported, "fp8_recipe",
               [&] { optim::config_from_args(fp8.root()).validate(); });
  const ValueTree fine = state_of(kFixtureArgs);
  const optim::OptimizerConfig config = optim::config_from_args(fine.root());
  config.validate();
  BOOST_TEST(config.muon_momentum == 0.9);
}

BOOST_AUTO_TEST_CASE(an_argument_of_another_type_is_refused_by_name) {
  const std::vector<std::pair<std::string, MakeValue>> rows = {
      {"lr", text("0.1")},    {"bf16", integer(1)},           {"hysteresis", number(2)},
      {"optimizer", none},    {"params_dtype", text("bf16")}, {"params_dtype", dtype("Size")},
      {"weight_decay", none}, {"muon_scale_mode", integer(1)}};
  for (const auto& [field, make] : rows) {
    expect_error(ErrorCode::Corrupt, "args." + field, [&] { read({{field, make}}); });
  }
  expect_error(ErrorCode::Unsupported, "args.muon_coefficient_type", [] {
    read({{"muon_coefficient_type", text("septic")}});
  });
}

BOOST_AUTO_TEST_CASE(qkv_is_split_by_query_groups_only_where_attention_is_grouped) {
  Args args = {{"num_attention_heads", integer(8)},
               {"kv_channels", integer(16)},
               {"num_query_groups", integer(1)},
               {"group_query_attention", flag(false)}};
  const auto split = [&] { return optim::qkv_split_from_args(state_of(args).root()); };
  BOOST_TEST((split() == optim::QkvSplit{16, 16, 16}));
  args[2].second = integer(2);
  args[3].second = flag(true);
  BOOST_TEST((split() == optim::QkvSplit{64, 16, 16}));
  args[2].second = integer(3);
  expect_error(ErrorCode::Corrupt, "args.num_query_groups", split);
  args[2].second = integer(0);
  expect_error(ErrorCode::Corrupt, "args.num_query_groups", split);
  args[1].second = none;
  expect_error(ErrorCode::Corrupt, "args.kv_channels", split);
  args[0].first = "heads";
  expect_error(ErrorCode::Corrupt, "args.num_attention_heads", split);
  args.emplace_back("attention_output_gate", flag(true));
  expect_error(ErrorCode::Unsupported, "args.attention_output_gate", split);
}

BOOST_AUTO_TEST_CASE(the_args_of_real_checkpoints_are_read_in_both_formats) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"lw_muon_bf16_torch_dist_dp2", "common.pt"},
      {"lw_muon_bf16_torch_dp2", "mp_rank_00/model_optim_rng.pt"}};
  for (const auto& [folder, file] : rows) {
    const auto checkpoint =
        optim::open_checkpoint(std::string(SHARDWISE_GOLDEN_DIR) + "/" + folder + "/ckpt");
    const ckpt::Document* document = checkpoint.document(file);
    BOOST_TEST_REQUIRE(document != nullptr);
    const ckpt::Value args = document->tree.root().at("args").state().value();
    const auto config = optim::config_from_args(args);
    BOOST_TEST(config.optimizer == "muon");
    BOOST_TEST(*config.lr == 0.01);
    BOOST_TEST(config.muon_momentum == 0.9);
    BOOST_TEST((config.params_dtype == ckpt::DType::BFloat16));
    config.validate();
    config.validate(optim::ReferenceRules{});
    BOOST_TEST((optim::qkv_split_from_args(args) == optim::QkvSplit{8, 8, 8}));
  }
}

BOOST_AUTO_TEST_SUITE_END()
