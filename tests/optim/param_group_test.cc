#include <optim/param_group.h>
#include <optim/reference_groups.h>

#include <map>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "optim/expect_error.h"
#include "optim/golden_json.h"

namespace {

using ckpt::ErrorCode;
using nlohmann::json;
using optim::ConfigOverrides;
using optim::OptimizerConfig;
using optim::ParamGroup;
using optim::ParamInfo;

// optim::ParamGroupOverride from a JSON object.
optim::ParamGroupOverride read_override(const json& object) {
  optim::ParamGroupOverride override;
  for (const auto& [key, value] : object.items()) {
    if (value.is_boolean())
      override[key] = value.get<bool>();
    else if (value.is_number_integer())
      override[key] = value.get<int64_t>();
    else if (value.is_number())
      override[key] = value.get<double>();
    else
      override[key] = value.get<std::string>();
  }
  return override;
}

std::vector<ParamInfo> read_params(const json& rows) {
  std::vector<ParamInfo> params;
  for (const auto& row : rows) {
    ParamInfo param{
        .name = row["name"], .shape = row["shape"], .requires_grad = row["requires_grad"]};
    param.attributes.allreduce = row["allreduce"];
    param.attributes.is_embedding_or_output_parameter = row["output"];
    params.push_back(std::move(param));
  }
  return params;
}

ConfigOverrides read_overrides(const json& rows, const OptimizerConfig& config) {
  ConfigOverrides overrides = optim::get_standard_config_overrides(config);
  for (const auto& row : rows) {
    set_override(overrides,
                 {.name = row[0].value("name", std::vector<std::string>{}),
                  .attr = row[0].value("attr", std::vector<std::string>{})},
                 read_override(row[1]));
  }
  return overrides;
}

// A group as the golden file writes it.
json written(const ParamGroup& group) {
  json result = {{"is_expert_parallel", group.is_expert_parallel},
                 {"default_config", group.default_config},
                 {"wd_mult", group.wd_mult},
                 {"lr_mult", group.lr_mult},
                 {"is_decoupled_lr", group.is_decoupled_lr},
                 {"max_lr", nullptr},
                 {"min_lr", nullptr},
                 {"params", json::array()}};
  if (group.max_lr) result["max_lr"] = *group.max_lr;
  if (group.min_lr) result["min_lr"] = *group.min_lr;
  if (group.optimizer) result["optimizer"] = *group.optimizer;
  for (const auto& [key, value] : group.others) {
    std::visit([&, &name = key](const auto& v) { result[name] = v; }, value);
  }
  for (const auto& param : group.params) result["params"].push_back(param.info.name);
  return result;
}

// The reference's chain: one optimizer per (name, expert) in order of first use; without Muon the
// dense optimizer is always the first.
std::vector<json> chained(const std::vector<json>& groups, const std::string& base) {
  std::vector<std::pair<std::string, bool>> order;
  if (base != "muon") order.emplace_back(base, false);
  std::vector<std::vector<json>> buckets(order.size());
  for (const json& group : groups) {
    const std::pair key{group.value("optimizer", base), group["is_expert_parallel"].get<bool>()};
    const auto at = std::find(order.begin(), order.end(), key);
    const auto index = static_cast<size_t>(at - order.begin());
    if (at == order.end()) order.push_back(key), buckets.emplace_back();
    buckets[index].push_back(group);
    buckets[index].back()["chained"] = index;
  }
  std::vector<json> all;
  for (const auto& bucket : buckets) all.insert(all.end(), bucket.begin(), bucket.end());
  return all;
}

ParamInfo matrix(std::string name) { return {.name = std::move(name), .shape = {4, 4}}; }

}  // namespace

BOOST_AUTO_TEST_SUITE(param_group)

BOOST_AUTO_TEST_CASE(groups_are_those_that_megatron_core_makes) {
  for (const auto& row : golden("groups.json")) {
    const OptimizerConfig config = optim::optimizer_config_from_json(row["config"].dump());
    const std::vector<ParamInfo> params = read_params(row["params"]);
    BOOST_TEST_CONTEXT(row["config"] << row["overrides"]) {
      const auto overrides = read_overrides(row["overrides"], config);
      if (row.contains("error")) {
        BOOST_CHECK_THROW(get_param_groups(params, config, overrides), ckpt::Error);
        continue;
      }
      const std::vector<json> expected = chained(row["groups"], config.optimizer);
      const std::vector<ParamGroup> groups = get_param_groups(params, config, overrides);
      BOOST_TEST_REQUIRE(groups.size() == expected.size());
      for (size_t i = 0; i < groups.size(); ++i) {
        json actual = written(groups[i]);
        actual["chained"] = groups[i].optimizer_index;
        BOOST_TEST(actual == expected[i]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(members_say_where_they_were_in_the_list) {
  std::vector<ParamInfo> params = {matrix("a"), matrix("frozen"), {.name = "b", .shape = {4}}};
  params[1].requires_grad = false;
  const auto groups = optim::get_param_groups(params, {.lr = 0.1});
  BOOST_TEST_REQUIRE(groups.size() == 2u);
  BOOST_TEST(groups[0].params.at(0).index == 0u);
  BOOST_TEST(groups[1].params.at(0).index == 2u);
}

BOOST_AUTO_TEST_CASE(muon_is_the_first_optimizer_and_adam_with_decay_comes_before_adam_without) {
  const std::vector<ParamInfo> params = {
      {.name = "norm.weight", .shape = {4}},
      {.name = "word_embeddings.weight",
       .shape = {8, 4},
       .attributes = {.is_embedding_or_output_parameter = true}},
      matrix("linear_qkv.weight"),
      {.name = "opted_out.weight", .shape = {4, 4}, .attributes = {.use_muon = false}}};
  const auto groups = optim::get_param_groups(params, {.lr = 0.1, .optimizer = "muon"});
  BOOST_TEST_REQUIRE(groups.size() == 3u);
  BOOST_TEST(groups[0].optimizer_index == 0u);
  BOOST_TEST(groups[0].updated_by == "muon");
  BOOST_TEST(!groups[0].optimizer.has_value());
  BOOST_TEST(groups[0].params.at(0).info.attributes.is_qkv);
  BOOST_TEST(groups[1].optimizer_index == 1u);
  BOOST_TEST(*groups[1].optimizer == "adam");
  BOOST_TEST(groups[1].wd_mult == 1.0);
  BOOST_TEST(groups[1].params.size() == 2u);
  BOOST_TEST(groups[2].optimizer_index == 1u);
  BOOST_TEST(groups[2].wd_mult == 0.0);
  BOOST_TEST(groups[2].params.at(0).info.name == "norm.weight");
}

BOOST_AUTO_TEST_CASE(muon_scalar_optimizer_names_what_updates_the_rest) {
  const std::vector<ParamInfo> params = {matrix("w"), {.name = "b", .shape = {4}}};
  const OptimizerConfig config{.lr = 0.1, .optimizer = "muon", .muon_scalar_optimizer = "lion"};
  BOOST_TEST(optim::get_param_groups(params, config).at(1).updated_by == "lion");
  const optim::ConfigOverrides overrides = optim::get_standard_config_overrides(config);
  const auto groups = optim::get_param_groups(params, config, overrides, optim::ReferenceRules{});
  BOOST_TEST(groups.at(1).updated_by == "adam");  // the reference stores the field and no more
}

BOOST_AUTO_TEST_CASE(experts_have_an_optimizer_of_their_own_unless_sharding_is_layer_wise) {
  std::vector<ParamInfo> params = {matrix("w"), matrix("experts.0.w")};
  params[1].attributes.allreduce = false;
  OptimizerConfig config{.lr = 0.1, .optimizer = "muon"};
  auto groups = optim::get_param_groups(params, config);
  BOOST_TEST(groups.at(1).is_expert_parallel);
  BOOST_TEST(groups.at(1).optimizer_index == 1u);
  BOOST_TEST(groups.at(1).params.at(0).info.attributes.expert_tp);
  config.use_layer_wise_distributed_optimizer = true;
  groups = optim::get_param_groups(params, config);
  BOOST_TEST(groups.at(1).is_expert_parallel);
  BOOST_TEST(groups.at(1).optimizer_index == 0u);
}

BOOST_AUTO_TEST_CASE(without_an_emerging_optimizer_the_dense_optimizer_is_the_first) {
  std::vector<ParamInfo> params = {matrix("experts.0.w"), {.name = "b", .shape = {4}}};
  params[0].attributes.allreduce = false;
  const auto groups = optim::get_param_groups(params, {.lr = 0.1});
  BOOST_TEST_REQUIRE(groups.size() == 2u);
  BOOST_TEST(groups[0].params.at(0).info.name == "b");
  BOOST_TEST(groups[0].optimizer_index == 0u);
  BOOST_TEST(groups[1].is_expert_parallel);
  BOOST_TEST(groups[1].optimizer_index == 1u);
}

BOOST_AUTO_TEST_CASE(keys_of_other_ranks_make_empty_groups) {
  const OptimizerConfig config{.lr = 0.1, .optimizer = "muon"};
  const auto overrides = optim::get_standard_config_overrides(config);
  const std::vector<ParamInfo> first = {matrix("w")};
  const std::vector<ParamInfo> second = {{.name = "b", .shape = {4}}, matrix("v")};
  const auto keys = optim::get_group_keys(second, config, overrides);
  BOOST_TEST(keys.size() == 2u);
  const auto groups = optim::get_param_groups(first, config, overrides, keys);
  BOOST_TEST_REQUIRE(groups.size() == 2u);
  BOOST_TEST(groups[0].params.size() == 1u);
  BOOST_TEST(groups[1].params.empty());
  BOOST_TEST(groups[1].wd_mult == 0.0);
  BOOST_TEST(groups[1].updated_by == "adam");
}

// Where overrides do not tell two groups apart, the order of the gathered keys does.
BOOST_AUTO_TEST_CASE(ranks_that_see_experts_earlier_or_later_have_the_same_groups) {
  const OptimizerConfig config{
      .lr = 0.1, .optimizer = "muon", .use_layer_wise_distributed_optimizer = true};
  ConfigOverrides overrides = optim::get_standard_config_overrides(config);
  set_override(overrides, {.name = {"*fc2.weight*"}}, {{"max_lr", 0.5}});
  std::vector<ParamInfo> dense_first = {matrix("mlp.fc2.weight"),
                                        matrix("mlp.experts.fc2.weight0")};
  dense_first[1].attributes.allreduce = false;
  const std::vector<ParamInfo> experts_first = {dense_first[1], dense_first[0]};
  const auto keys = optim::get_group_keys(dense_first, config, overrides);
  for (const auto& params : {dense_first, experts_first}) {
    const auto groups = optim::get_param_groups(params, config, overrides, keys);
    BOOST_TEST_REQUIRE(groups.size() == 2u);
    BOOST_TEST(!groups[0].is_expert_parallel);
    BOOST_TEST(groups[0].params.at(0).info.name == "mlp.fc2.weight");
    BOOST_TEST(groups[1].is_expert_parallel);
  }
}

BOOST_AUTO_TEST_CASE(conflicting_overrides_are_refused_with_the_parameters_name) {
  const std::vector<ParamInfo> params = {matrix("w")};
  const ConfigOverrides overrides = {{{.name = {"w"}}, {{"max_lr", 0.5}}},
                                     {{.name = {"*"}}, {{"max_lr", 0.25}}}};
  expect_error(ErrorCode::InvalidArgument, "w",
               [&] { get_param_groups(params, {.lr = 0.1}, overrides); });
  const ConfigOverrides equal = {{{.name = {"w"}}, {{"max_lr", int64_t{1}}}},
                                 {{.name = {"*"}}, {{"max_lr", 1.0}}}};
  BOOST_TEST(get_param_groups(params, {.lr = 0.1}, equal).at(0).max_lr.value() == 1.0);
}

BOOST_AUTO_TEST_CASE(overrides_of_what_grouping_or_the_configuration_decides_are_refused) {
  const std::vector<ParamInfo> params = {matrix("w")};
  const std::vector<std::pair<std::string, optim::OverrideValue>> rows = {
      {"params", std::string("x")},    {"is_expert_parallel", true},
      {"default_config", false},       {"optimizer", 1.0},
      {"optimizer_cpu_offload", true}, {"overlap_param_gather_with_optimizer_step", true},
      {"max_lr", std::string("high")}, {"wd_mult", std::string("none")}};
  for (const auto& [field, value] : rows) {
    const ConfigOverrides overrides = {{{.name = {"w"}}, {{field, value}}}};
    expect_error(ErrorCode::InvalidArgument, field,
                 [&] { get_param_groups(params, {.lr = 0.1}, overrides); });
  }
}

BOOST_AUTO_TEST_CASE(an_override_gives_a_group_an_optimizer_of_its_own) {
  std::vector<ParamInfo> params = {matrix("w"), matrix("head"), {.name = "b", .shape = {4}}};
  params[1].attributes.is_embedding_or_output_parameter = true;
  const ConfigOverrides overrides = {{{.name = {"head"}}, {{"optimizer", std::string("sgd")}}}};
  const OptimizerConfig muon{.lr = 0.1, .optimizer = "muon"};
  const auto groups = get_param_groups(params, muon, overrides);
  BOOST_TEST_REQUIRE(groups.size() == 3u);
  BOOST_TEST(groups[0].updated_by == "muon");
  BOOST_TEST(groups[1].updated_by == "adam");
  BOOST_TEST(groups[1].params.at(0).info.name == "b");
  BOOST_TEST(groups[2].updated_by == "sgd");
  BOOST_TEST(groups[2].optimizer_index == 2u);
  expect_error(ErrorCode::InvalidArgument, "optimizer",
               [&] { validate_overrides(muon, overrides, optim::ReferenceRules{}); });
}

BOOST_AUTO_TEST_CASE(an_override_may_give_matrices_to_muon_and_only_matrices) {
  const ConfigOverrides overrides = {{{.name = {"*"}}, {{"optimizer", std::string("muon")}}}};
  const std::vector<ParamInfo> good = {matrix("layer.linear_qkv.weight")};
  const auto groups = get_param_groups(good, {.lr = 0.1}, overrides);
  BOOST_TEST(groups.at(0).updated_by == "muon");
  BOOST_TEST(groups[0].params.at(0).info.attributes.is_qkv);
  const std::vector<ParamInfo> bad = {{.name = "bias", .shape = {4}}};
  expect_error(ErrorCode::InvalidArgument, "bias",
               [&] { get_param_groups(bad, {.lr = 0.1}, overrides); });
  const ConfigOverrides unknown = {{{.name = {"*"}}, {{"optimizer", std::string("psgd")}}}};
  expect_error(ErrorCode::Unsupported, "optimizer",
               [&] { get_param_groups(good, {.lr = 0.1}, unknown); });
}

// The documented examples of the two predicates.
BOOST_AUTO_TEST_CASE(the_documented_predicates_select_what_their_documentation_says) {
  const optim::ParamPredicate shape_1_param{
      "s1", [](const ParamInfo& param) { return param.shape.size() == 1; }};
  const optim::ParamWithNamePredicate not_qkln{
      "s1_not_qkln", [](const ParamInfo& param, std::string_view name) {
        const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
        return param.shape.size() == 1 && !has("q_layernorm.") && !has("k_layernorm.");
      }};
  const ParamInfo norm{.name = "layers.0.q_layernorm.weight", .shape = {8}};
  const ParamInfo bias{.name = "layers.0.linear.bias", .shape = {8}};
  BOOST_TEST(shape_1_param(norm));
  BOOST_TEST(!shape_1_param(matrix("w")));
  BOOST_TEST(!not_qkln(norm, norm.name));
  BOOST_TEST(not_qkln(bias, bias.name));
  const optim::ParamKey either{.predicate = {shape_1_param}, .with_name_predicate = {not_qkln}};
  BOOST_TEST(either.matches(norm, norm.name));
}

BOOST_AUTO_TEST_CASE(values_of_one_key_that_have_no_order_are_refused) {
  const std::vector<ParamInfo> params = {matrix("w"), matrix("v")};
  const ConfigOverrides overrides = {{{.name = {"w"}}, {{"eps", 0.5}}},
                                     {{.name = {"v"}}, {{"eps", std::string("small")}}}};
  expect_error(ErrorCode::InvalidArgument, "eps",
               [&] { get_param_groups(params, {.lr = 0.1}, overrides); });
}

BOOST_AUTO_TEST_CASE(an_override_that_nothing_reads_is_refused_by_name) {
  const std::vector<ParamInfo> params = {matrix("w")};
  for (const char* const field : {"betas", "max_lrr", "weight_decay"}) {
    const ConfigOverrides overrides = {{{.name = {"*"}}, {{field, 0.5}}}};
    expect_error(ErrorCode::InvalidArgument, field,
                 [&] { get_param_groups(params, {.lr = 0.1}, overrides); });
  }
}

BOOST_AUTO_TEST_CASE(an_eps_is_refused_where_no_adam_would_read_it) {
  const std::vector<ParamInfo> params = {matrix("w"), {.name = "b", .shape = {4}}};
  const auto eps_of = [](const char* glob) {
    return ConfigOverrides{{{.name = {glob}}, {{"eps", 1e-6}}}};
  };
  for (const char* const optimizer : {"muon", "sgd", "lion"}) {
    const OptimizerConfig config{.lr = 0.1, .optimizer = optimizer};
    expect_error(ErrorCode::InvalidArgument, "eps",
                 [&] { get_param_groups(params, config, eps_of("*")); });
  }
  BOOST_TEST(get_param_groups(params, {.lr = 0.1, .optimizer = "muon"}, eps_of("b")).size() == 2u);
  BOOST_TEST(get_param_groups(params, {.lr = 0.1}, eps_of("*")).size() == 1u);
}

BOOST_AUTO_TEST_CASE(setting_an_override_twice_keeps_the_last_value_in_the_first_place) {
  ConfigOverrides overrides;
  set_override(overrides, {.name = {"a"}}, {{"wd_mult", 0.0}});
  set_override(overrides, {.name = {"b"}}, {{"wd_mult", 0.5}});
  set_override(overrides, {.name = {"a"}}, {{"wd_mult", 1.0}});
  BOOST_TEST_REQUIRE(overrides.size() == 2u);
  BOOST_TEST(std::get<double>(overrides[0].second.at("wd_mult")) == 1.0);
}

BOOST_AUTO_TEST_SUITE_END()
