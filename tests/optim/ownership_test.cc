#include <optim/lpt_layout.h>
#include <optim/ownership.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "optim/expect_error.h"
#include "optim/golden_json.h"

namespace {

using nlohmann::json;
using optim::Ownership;
using optim::OwnershipPolicy;
using optim::ParallelSizes;
using optim::ParamGroup;
using optim::ParamInfo;

using Lists = std::vector<std::vector<uint32_t>>;

// Groups of one-dimensional parameters of these element counts.
std::vector<ParamGroup> groups_of(const std::vector<std::vector<int64_t>>& sizes,
                                  const std::vector<bool>& experts) {
  std::vector<ParamGroup> groups;
  for (size_t g = 0; g < sizes.size(); ++g) {
    ParamGroup group{.is_expert_parallel = experts[g]};
    for (const int64_t count : sizes[g])
      group.params.push_back({0, {.name = "p", .shape = {count}}});
    groups.push_back(std::move(group));
  }
  return groups;
}

// A golden list of ids per rank; null where the reference has None.
Lists read_lists(const json& lists) { return lists.is_null() ? Lists{} : lists.get<Lists>(); }

// A parameter with the attributes that its name implies.
ParamInfo named(std::string name, std::vector<int64_t> shape) {
  ParamInfo param{.name = std::move(name), .shape = std::move(shape)};
  param.attributes = optim::megatron_attributes(param.name, param.shape.size());
  return param;
}

// The parameters of a golden model, in its order.
std::vector<ParamInfo> read_model(const json& params) {
  std::vector<ParamInfo> model;
  for (const auto& row : params) model.push_back(named(row[0], row[1]));
  return model;
}

// The two-layer GPT of the fixtures, in Megatron's order of registration.
std::vector<ParamInfo> fixture_model() {
  std::vector<ParamInfo> model = {named("embedding.word_embeddings.weight", {64, 16}),
                                  named("embedding.position_embeddings.weight", {32, 16})};
  const auto add = [&](const std::string& name, std::vector<int64_t> weight, int64_t bias) {
    model.push_back(named(name + ".weight", std::move(weight)));
    model.push_back(named(name + ".bias", {bias}));
  };
  for (const std::string layer : {"decoder.layers.0.", "decoder.layers.1."}) {
    add(layer + "input_layernorm", {16}, 16);
    add(layer + "self_attention.linear_proj", {16, 16}, 16);
    add(layer + "self_attention.linear_qkv", {48, 16}, 48);
    add(layer + "pre_mlp_layernorm", {16}, 16);
    add(layer + "mlp.linear_fc1", {64, 16}, 64);
    add(layer + "mlp.linear_fc2", {16, 64}, 16);
  }
  add("decoder.final_layernorm", {16}, 16);
  model.push_back(named("output_layer.weight", {64, 16}));
  return model;
}

const optim::OptimizerConfig kLayerWiseMuon{
    .lr = 0.01, .optimizer = "muon", .use_layer_wise_distributed_optimizer = true};

std::vector<std::string> names_by_id(const std::vector<ParamGroup>& groups) {
  std::vector<std::string> names;
  for (const ParamGroup& group : groups) {
    for (const auto& param : group.params) names.push_back(param.info.name);
  }
  return names;
}

// Rank, optimizer, group and index of every parameter, as the fixtures' ownership.json has them.
json placed(const std::vector<ParamGroup>& groups, uint32_t data_parallel) {
  const Ownership ownership =
      shard_params(groups, {.data_parallel = data_parallel}, OwnershipPolicy::PingPong);
  const std::vector<std::string> names = names_by_id(groups);
  json result;
  for (uint32_t rank = 0; rank < data_parallel; ++rank) {
    for (const auto& local : local_params(groups, ownership, {.dp_cp = rank, .expt_dp = rank})) {
      result[names[local.id]] = {{"rank", rank},
                                 {"optimizer", local.optimizer},
                                 {"group", local.group},
                                 {"index", local.index}};
    }
  }
  return result;
}

std::vector<double> loads(const std::vector<ParamGroup>& groups, const Ownership& ownership,
                          uint32_t ranks) {
  std::vector<double> load(ranks, 0);
  size_t id = 0;
  for (const ParamGroup& group : groups) {
    for (const auto& param : group.params) {
      load[ownership.owner[id++]] += optim::update_cost(param.info, group);
    }
  }
  return load;
}

std::vector<ParamGroup> random_matrices(std::mt19937& random, size_t count) {
  ParamGroup group{.updated_by = "muon"};
  std::uniform_int_distribution<int64_t> size(1, 64);
  for (size_t i = 0; i < count; ++i) {
    group.params.push_back({i, {.name = "w", .shape = {64 * size(random), 64 * size(random)}}});
  }
  return {group};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ownership)

BOOST_AUTO_TEST_CASE(the_deal_goes_up_and_down) {
  std::vector<uint32_t> ranks;
  for (uint64_t turn = 0; turn < 10; ++turn) ranks.push_back(optim::ping_pong_rank(turn, 4));
  BOOST_TEST(ranks == (std::vector<uint32_t>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1}));
  BOOST_TEST(optim::ping_pong_rank(12345, 1) == 0u);
}

BOOST_AUTO_TEST_CASE(ping_pong_is_the_deal_of_the_seeds_golden_file) {
  for (const auto& row : golden("pingpong.json")) {
    const auto sizes = row["group_sizes"].get<std::vector<std::vector<int64_t>>>();
    std::vector<bool> experts(sizes.size(), false);
    experts.back() = row["expert_last_group"].get<bool>();
    const auto dp = row["dp"].get<uint32_t>();
    const uint32_t expt_dp = row["expt_dp"].is_null() ? dp : row["expt_dp"].get<uint32_t>();
    const Ownership ownership = shard_params(groups_of(sizes, experts),
                                             {.data_parallel = dp, .expert_parallel = dp / expt_dp},
                                             OwnershipPolicy::PingPong);
    BOOST_TEST_CONTEXT(row) {
      BOOST_TEST((ownership.dp_cp_params_list == read_lists(row["dp_cp_params_list"])));
      BOOST_TEST((ownership.expt_dp_params_list == read_lists(row["expt_dp_params_list"])));
      for (uint32_t rank = 0; rank < dp; ++rank) {
        const Lists kept = ownership.groups_on({.dp_cp = rank, .expt_dp = rank % expt_dp});
        BOOST_TEST((kept == row["per_rank_groups"][rank].get<Lists>()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(ping_pong_is_megatron_cores_deal_of_random_groups_with_experts) {
  for (const auto& row : golden("deals.json")) {
    const auto dp = row["dp"].get<uint32_t>(), experts = row["expert_parallel"].get<uint32_t>();
    const Ownership ownership =
        shard_params(groups_of(row["sizes"], row["experts"]),
                     {.data_parallel = dp, .expert_parallel = experts}, OwnershipPolicy::PingPong);
    BOOST_TEST_CONTEXT(row) {
      BOOST_TEST((ownership.dp_cp_params_list == read_lists(row["dp_cp_params_list"])));
      BOOST_TEST((ownership.expt_dp_params_list == read_lists(row["expt_dp_params_list"])));
      for (uint32_t rank = 0; rank < dp; ++rank) {
        const Lists kept = ownership.groups_on({.dp_cp = rank, .expt_dp = rank % (dp / experts)});
        BOOST_TEST((kept == row["kept"][rank].get<Lists>()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_parameter_of_a_real_run_is_where_megatron_put_it) {
  const auto groups = optim::get_param_groups(fixture_model(), kLayerWiseMuon);
  for (const auto& row : golden("ownership.json")) {
    const auto ranks = row["data_parallel"].get<uint32_t>();
    BOOST_TEST_CONTEXT(ranks << " ranks") {
      const json actual = placed(groups, ranks);
      BOOST_TEST(actual.size() == row["ownership"].size());
      for (const auto& [name, place] : row["ownership"].items()) {
        BOOST_TEST(actual[name] == place, name << ": " << actual[name] << " is not " << place);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_layer_wise_fixture_agrees) {
  const std::filesystem::path fixtures = SHARDWISE_FIXTURES_DIR;
  const auto groups = optim::get_param_groups(fixture_model(), kLayerWiseMuon);
  size_t sets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures)) {
    const auto path = entry.path() / "expected/ownership.json";
    if (!entry.path().filename().string().starts_with("lw_") || !exists(path)) continue;
    const json expected = json::parse(std::ifstream(path));
    uint32_t ranks = 1;
    for (const auto& place : expected) ranks = std::max(ranks, place["rank"].get<uint32_t>() + 1);
    BOOST_TEST((placed(groups, ranks) == expected), entry.path().filename());
    ++sets;
  }
  BOOST_TEST(sets >= 11u);
}

BOOST_AUTO_TEST_CASE(deeper_and_other_models_are_dealt_as_megatron_core_deals_them) {
  for (const auto& row : golden("models.json")) {
    const auto groups = optim::get_param_groups(read_model(row["params"]), kLayerWiseMuon);
    const std::vector<std::string> names = names_by_id(groups);
    for (const auto& [ranks, expected] : row["ranks"].items()) {
      const auto dp = static_cast<uint32_t>(std::stoul(ranks));
      const Ownership ownership =
          shard_params(groups, {.data_parallel = dp}, OwnershipPolicy::PingPong);
      for (uint32_t rank = 0; rank < dp; ++rank) {
        json kept = json::array();
        for (const auto& ids : ownership.groups_on({.dp_cp = rank, .expt_dp = rank})) {
          kept.push_back(json::array());
          for (const uint32_t id : ids) kept.back().push_back(names[id]);
        }
        BOOST_TEST((kept == expected[rank]), row["model"] << " rank " << rank << " of " << dp);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(one_rank_keeps_everything_in_model_order) {
  const auto groups = groups_of({{5, 3, 4}, {2}}, {false, true});
  for (const auto policy : {OwnershipPolicy::PingPong, OwnershipPolicy::Balanced}) {
    const Ownership ownership = shard_params(groups, {}, policy);
    BOOST_TEST((ownership.groups_on({}) == Lists{{0, 1, 2}, {3}}));
    BOOST_TEST(ownership.dp_cp_params_list.empty());
    BOOST_TEST(ownership.expt_dp_params_list.empty());
  }
}

BOOST_AUTO_TEST_CASE(indices_count_over_the_groups_of_an_optimizer) {
  auto groups = groups_of({{8}, {}, {1, 2}, {4}}, {false, false, false, false});
  for (size_t g = 1; g < groups.size(); ++g) groups[g].optimizer_index = 1;
  const auto local = local_params(groups, shard_params(groups, {}, OwnershipPolicy::PingPong), {});
  const std::vector<optim::LocalParam> expected = {
      {0, 0, 0, 0}, {1, 1, 1, 0}, {2, 1, 1, 1}, {3, 1, 2, 2}};
  BOOST_TEST((local == expected));
}

BOOST_AUTO_TEST_CASE(context_parallel_ranks_share_the_deal) {
  const auto groups = groups_of({{1, 2, 3, 4, 5}}, {false});
  const auto together =
      shard_params(groups, {.data_parallel = 2, .context_parallel = 2}, OwnershipPolicy::PingPong);
  const auto flat = shard_params(groups, {.data_parallel = 4}, OwnershipPolicy::PingPong);
  BOOST_TEST((together.dp_cp_params_list == flat.dp_cp_params_list));
}

BOOST_AUTO_TEST_CASE(sizes_that_make_no_process_grid_are_refused) {
  const auto refused = [](const ParallelSizes& sizes) {
    expect_error(ckpt::ErrorCode::InvalidArgument, "",
                 [&] { shard_params({}, sizes, OwnershipPolicy::PingPong); });
  };
  refused({.data_parallel = 0});
  refused({.virtual_pipeline_parallel = 0});
  refused({.data_parallel = 3, .expert_parallel = 2});
  refused({.data_parallel = 1u << 31, .context_parallel = 4});
  const ParallelSizes moe{.data_parallel = 4, .tensor_parallel = 2, .expert_parallel = 2};
  BOOST_TEST(moe.world() == 8u);
  BOOST_TEST(moe.dp_cp() == 4u);
  BOOST_TEST(moe.expt_dp() == 4u);
}

BOOST_AUTO_TEST_CASE(cost_is_max_times_min_squared_for_matrices_of_matrix_rules_only) {
  const ParamInfo wide{.name = "w", .shape = {3, 5}}, vector{.name = "b", .shape = {7}};
  for (const char* rule : {"muon", "soap", "adaptive_muon"}) {
    BOOST_TEST(update_cost(wide, {.updated_by = rule}) == 45.0);
    BOOST_TEST(update_cost(vector, {.updated_by = rule}) == 7.0);
  }
  BOOST_TEST(update_cost(wide, {.updated_by = "adam"}) == 15.0);
}

BOOST_AUTO_TEST_CASE(balanced_loads_stay_below_the_mean_plus_the_largest_cost) {
  std::mt19937 random(7);
  for (const uint32_t ranks : {2u, 3u, 8u, 31u}) {
    for (const size_t count : {1u, 5u, 40u, 400u}) {
      const auto groups = random_matrices(random, count);
      const Ownership ownership =
          shard_params(groups, {.data_parallel = ranks}, OwnershipPolicy::Balanced);
      const auto load = loads(groups, ownership, ranks);
      const double mean = std::accumulate(load.begin(), load.end(), 0.0) / ranks;
      double largest = 0;
      for (const auto& param : groups[0].params) {
        largest = std::max(largest, update_cost(param.info, groups[0]));
      }
      const double most = *std::ranges::max_element(load);
      BOOST_TEST(most <= (mean + largest) * (1 + 1e-12), ranks << " ranks, " << count);
      if (largest <= mean / 20) BOOST_TEST(most <= 1.05 * mean, ranks << " ranks, " << count);
    }
  }
}

BOOST_AUTO_TEST_CASE(balanced_gives_the_longest_first_and_the_lower_rank_among_equals) {
  const auto groups = groups_of({{1, 8, 8, 3, 9}}, {false});
  const Ownership ownership = shard_params(groups, {.data_parallel = 2}, OwnershipPolicy::Balanced);
  BOOST_TEST(ownership.dealt == (std::vector<uint32_t>{4, 1, 2, 3, 0}));
  // 9 | 8, then 8 to the lesser load of 8, 3 to 9, 1 to 12.
  BOOST_TEST((ownership.dp_cp_params_list == Lists{{4, 3, 0}, {1, 2}}));
}

BOOST_AUTO_TEST_CASE(lpt_layouts_are_those_of_the_golden_file) {
  for (const auto& row : golden("lpt.json")) {
    const auto shapes = row["shapes"].get<std::vector<optim::Shape>>();
    optim::LptOptions options{
        .data_parallel = row["dp"],
        .bucket_param_counts = std::vector<uint32_t>(row["bucket_indices"].size(), 0),
        .pad_buckets_for_high_nccl_busbw = row["pad_buckets_for_high_nccl_busbw"]};
    for (const auto& [id, place] : row["param_index_map"].items()) {
      ++options.bucket_param_counts[place[2].get<size_t>()];
    }
    const optim::LptLayout layout = optim::lpt_layout(shapes, options);
    BOOST_TEST_CONTEXT(row["shapes"] << " over " << row["dp"] << " ranks") {
      for (const auto& [id, place] : row["param_index_map"].items()) {
        const size_t at = std::stoul(id);
        BOOST_TEST(layout.place[at].begin == place[0].get<uint64_t>());
        BOOST_TEST(layout.place[at].end == place[1].get<uint64_t>());
        BOOST_TEST(layout.bucket[at] == place[2].get<uint32_t>());
        BOOST_TEST(layout.shard[at] == row["param_shard"][id].get<uint32_t>());
      }
      for (size_t b = 0; b < layout.buckets.size(); ++b) {
        BOOST_TEST(layout.buckets[b].begin == row["bucket_indices"][b][0].get<uint64_t>());
        BOOST_TEST(layout.buckets[b].end == row["bucket_indices"][b][1].get<uint64_t>());
        BOOST_TEST(layout.bucket_elements[b] ==
                   row["per_bucket_numel_unpadded"][b].get<uint64_t>());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(lpt_ownership_is_the_layout_of_one_bucket) {
  const auto groups = groups_of({{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}}, {false});
  const Ownership ownership = shard_params(groups, {.data_parallel = 2}, OwnershipPolicy::Lpt);
  BOOST_TEST((ownership.dp_cp_params_list == Lists{{9, 6, 5, 2, 1}, {8, 7, 4, 3, 0}}));
}

BOOST_AUTO_TEST_CASE(buckets_that_do_not_hold_every_parameter_are_refused) {
  const std::vector<optim::Shape> shapes = {{4}, {4}};
  for (const optim::LptOptions& options : std::vector<optim::LptOptions>{
           {.data_parallel = 0}, {.bucket_param_counts = {1}}, {.bucket_param_counts = {2, 1}}}) {
    expect_error(ckpt::ErrorCode::InvalidArgument, "", [&] { optim::lpt_layout(shapes, options); });
  }
}

BOOST_AUTO_TEST_CASE(every_parameter_has_one_owner_under_all_policies) {
  std::mt19937 random(11);
  auto groups = random_matrices(random, 50);
  groups.push_back(groups_of({{4, 4, 4, 9, 1}}, {true})[0]);
  for (const auto policy :
       {OwnershipPolicy::PingPong, OwnershipPolicy::Balanced, OwnershipPolicy::Lpt}) {
    const Ownership ownership =
        shard_params(groups, {.data_parallel = 6, .expert_parallel = 2}, policy);
    std::vector<int> kept(55, 0);
    for (uint32_t rank = 0; rank < 6; ++rank) {
      for (const auto& ids : ownership.groups_on({.dp_cp = rank, .expt_dp = rank % 3})) {
        for (const uint32_t id : ids) ++kept[id];
      }
    }
    for (size_t id = 0; id < kept.size(); ++id) BOOST_TEST(kept[id] == (id < 50 ? 1 : 2));
  }
}

BOOST_AUTO_TEST_SUITE_END()
