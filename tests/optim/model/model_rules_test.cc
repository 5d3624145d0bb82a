#include "model/model_rules.h"

#include <ckpt/error.h>
#include <ckpt/value_tree.h>
#include <training/filed_state.h>
#include <boost/test/unit_test.hpp>

#include "grid/placement.h"
#include "model/megatron_keys.h"
#include "model/tensor_names.h"
#include "optim/sharding/recorded_ranks.h"
#include "parallel/rank_grid.h"
#include "support/golden.h"

// The table of model rules says of each parameter what the ranks of real runs held.
BOOST_AUTO_TEST_SUITE(model_rules)

using optim::ModelRules;

BOOST_AUTO_TEST_CASE(the_order_is_the_one_in_which_ranks_registered_their_parameters) {
  for (const RecordedRanks& set : recorded_ranks()) {
    for (const auto& rank : set.json["ranks"]) {
      std::optional<optim::ModelPlace> last;
      uint32_t last_chunk = 0;
      for (const auto& param : set.params_of(rank)) {
        const std::string on_rank = param[2];
        const auto found = ModelRules::built_in().find(on_rank);
        BOOST_REQUIRE_MESSAGE(found, set.name() << ": no rule for " << on_rank);
        if (last && param[1] == last_chunk) {
          BOOST_TEST((*last < found->place), set.name() << ": order of " << on_rank);
        }
        last = found->place;
        last_chunk = param[1];
      }
    }
  }
}

ckpt::Extents extents(const nlohmann::json& shape) {
  const auto sizes = shape.get<std::vector<uint64_t>>();
  return ckpt::Extents(sizes.begin(), sizes.end());
}

BOOST_AUTO_TEST_CASE(the_split_gives_the_shapes_that_ranks_held) {
  for (const RecordedRanks& set : recorded_ranks()) {
    const bool is_gated = set.json["model"].value("swiglu", false);
    for (const auto& rank : set.json["ranks"]) {
      for (const auto& param : set.params_of(rank)) {
        const std::string name = param[0];
        const auto found = ModelRules::built_in().find(name);
        BOOST_REQUIRE_MESSAGE(found, set.name() << ": no rule for " << name);
        const ckpt::Extents whole = extents(set.json["shapes"][name]);
        const auto split = optim::split_of(*found->rule, whole, {is_gated});
        const bool is_expert = optim::expert_in(name).has_value();
        const uint32_t ranks =
            is_expert ? set.sizes().expert_tensor_parallel : set.sizes().tensor_parallel;
        const ckpt::Extents held = split ? optim::shape_on_rank(whole, *split, ranks) : whole;
        BOOST_TEST((held == extents(param[3])), set.name() << ": shape of " << name);
      }
    }
  }
}

// [name, shape on one of two tensor parallel ranks, shape] of BERT, T5 and LLaVA, as a rank of
// Megatron-Core 0.19.0 registered them (tests/golden/README.md).
BOOST_AUTO_TEST_CASE(other_families_are_registered_and_shared_as_a_rank_had_them) {
  const auto json = nlohmann::json::parse(test::read_file(test::golden("families.json")));
  const uint32_t ranks = json["tensor_parallel"];
  for (const auto& set : json["sets"]) {
    std::optional<optim::ModelPlace> last;
    for (const auto& param : set["params"]) {
      const std::string name = param[0];
      const auto found = ModelRules::built_in().find(name);
      BOOST_REQUIRE_MESSAGE(found, set["name"] << ": no rule for " << name);
      BOOST_TEST(found->has_known_place, name);
      if (last) BOOST_TEST((*last < found->place), set["name"] << ": order of " << name);
      last = found->place;
      const ckpt::Extents whole = extents(param[2]);
      const auto split = optim::split_of(*found->rule, whole, {});
      const ckpt::Extents held = split ? optim::shape_on_rank(whole, *split, ranks) : whole;
      BOOST_TEST((held == extents(param[1])), set["name"] << ": shape of " << name);
    }
  }
}

BOOST_AUTO_TEST_CASE(of_a_stack_that_nobody_knows_the_modules_are_known_and_not_the_place) {
  const auto found = ModelRules::built_in().find("ear.encoder.layers.3.mlp.linear_fc2.weight");
  BOOST_REQUIRE(found);
  BOOST_TEST((found->rule->split == optim::SplitKind::Columns));
  BOOST_TEST(!found->has_known_place);
}

BOOST_AUTO_TEST_CASE(names_are_found_by_layer_and_expert) {
  const ModelRules& rules = ModelRules::built_in();
  const auto grouped =
      rules.find("decoder.layers.12.mlp.experts.local_experts.7.linear_fc2.weight");
  BOOST_REQUIRE(grouped);
  BOOST_TEST(grouped->place.layer == 12u);
  BOOST_TEST(grouped->place.expert == 7u);
  BOOST_TEST(grouped->rule->key == "mlp.experts.experts.linear_fc2.weight");
  for (const char* unknown :
       {"", "decoder.layers.1", "decoder.layers.x.mlp.router.weight", "mlp.router.weight",
        "decoder.layers.1.embedding.word_embeddings.weight", "decoder.layers.1.mlp.gate"}) {
    BOOST_TEST(!rules.find(unknown).has_value(), unknown);
  }
}

BOOST_AUTO_TEST_CASE(an_expert_is_the_number_behind_experts_whatever_else_has_an_x) {
  const std::pair<const char*, std::optional<uint32_t>> names[] = {
      {"decoder.layers.3.mlp.experts.local_experts.12.linear_fc1.weight", 12},
      {"decoder.layers.3.mlp.experts.linear_fc2.weight7", 7},
      {"decoder.layers.3.max.extra.experts.local_experts.0.linear_fc1.bias", 0},
      {"x.experts.linear_fc1.bias3", 3},
      {".experts.linear_fc1.weight3", 3},
      {"experts.linear_fc1.weight3", std::nullopt},
      {"decoder.layers.3.mlp.shared_experts.linear_fc1.weight", std::nullopt},
      {"decoder.layers.3.mlp.experts.linear_fc1._extra_state", std::nullopt},
      {"decoder.layers.3.mlp.experts", std::nullopt},
      {"decoder.layers.3.mlp.linear_fc1.weight", std::nullopt},
      {"xx", std::nullopt},
      {"", std::nullopt}};
  for (const auto& [name, number] : names) {
    const auto expert = optim::expert_in(name);
    BOOST_TEST(expert.has_value() == number.has_value(), name);
    if (!expert || !number) continue;
    BOOST_TEST(expert->number == *number, name);
    BOOST_TEST(std::string_view(name).substr(expert->begin, expert->end - expert->begin) ==
               std::to_string(*number));
  }
}

BOOST_AUTO_TEST_CASE(a_layer_has_a_vocabulary_where_a_row_of_a_file_says_so) {
  optim::FiledState state;
  BOOST_TEST(optim::is_vocabulary(state, "embedding.word_embeddings.weight"));
  BOOST_TEST(!optim::is_vocabulary(state, "decoder.layers.0.mlp.table.weight"));
  state.rules = std::make_shared<const ModelRules>(ModelRules::built_in().with(
      ModelRules::parse(R"({"schema_version": 1, "rules": [{"part": "layer",
          "name": "mlp.table.weight", "split": "rows", "vocabulary": true}]})",
                        "mine.json")));
  BOOST_TEST(optim::is_vocabulary(state, "embedding.word_embeddings.weight"));
  BOOST_TEST(optim::is_vocabulary(state, "decoder.layers.0.mlp.table.weight"));
  BOOST_TEST(!optim::is_vocabulary(state, "decoder.layers.0.mlp.linear_fc1.weight"));
}

BOOST_AUTO_TEST_CASE(rows_of_a_file_replace_and_follow_the_built_in_ones) {
  const ModelRules more = ModelRules::parse(R"({"schema_version": 1, "rules": [
      {"part": "layer", "name": "mlp.linear_fc1.weight", "split": "rows"},
      {"part": "layer", "name": "mlp.gate.weight"}]})",
                                            "mine.json");
  const ModelRules both = ModelRules::built_in().with(more);
  const auto replaced = both.find("decoder.layers.0.mlp.linear_fc1.weight");
  BOOST_REQUIRE(replaced);
  BOOST_TEST((replaced->rule->split == optim::SplitKind::Rows));
  const auto place = ModelRules::built_in().find("decoder.layers.0.mlp.linear_fc1.weight")->place;
  BOOST_TEST((replaced->place == place));
  BOOST_TEST((both.find("decoder.layers.0.mlp.gate.weight")->place > place));
}

// Args of a hybrid model, and what more a case says.
class Args {
 public:
  Args() {
    tree_.set_root(tree_.dict());
    put("hidden_size", 16);
    put("mamba_head_dim", 8);
    put("mamba_num_groups", 2);
    put("mamba_state_dim", 4);
  }
  Args& put(const char* name, int64_t number) {
    tree_.put(tree_.root().id(), name, tree_.integer(number));
    return *this;
  }
  ModelRules rules() const { return ModelRules::built_in().of_args(tree_.root()); }

 private:
  ckpt::ValueTree tree_;
};

std::vector<uint64_t> sections_of(const ModelRules& rules, const char* name, uint32_t ranks,
                                  uint64_t rows) {
  const optim::TensorSharing sharing = optim::sharing_by_rule(
      std::string("decoder.layers.1.") + name, {rows, 16}, rules, {.ranks = ranks});
  return sharing.is_split() ? sharing.split->sections : std::vector<uint64_t>();
}

BOOST_AUTO_TEST_CASE(rows_of_several_projections_are_shared_each_on_its_own) {
  using Sections = std::vector<uint64_t>;
  const ModelRules rules = Args().rules();
  BOOST_TEST(sections_of(rules, "mixer.in_proj.weight", 1, 84) == (Sections{32, 32, 8, 8, 4}));
  BOOST_TEST(sections_of(rules, "mixer.in_proj.weight", 2, 42) == (Sections{16, 16, 4, 4, 2}));
  BOOST_TEST(sections_of(rules, "mixer.conv1d.weight", 2, 24) == (Sections{16, 4, 4}));
  const ModelRules of_heads = Args().put("mamba_num_heads", 6).rules();
  BOOST_TEST(sections_of(of_heads, "mixer.in_proj.weight", 1, 118) == (Sections{48, 48, 8, 8, 6}));
  // Of another model: 84 rows on each of 2 ranks, a rank count that heads cannot be dealt over,
  // no number of heads, and nothing of args.
  BOOST_TEST(sections_of(rules, "mixer.in_proj.weight", 2, 84).empty());
  BOOST_TEST(sections_of(of_heads, "mixer.in_proj.weight", 4, 29).empty());
  BOOST_TEST(sections_of(rules, "self_attention.in_proj.weight", 1, 56).empty());
  BOOST_TEST(sections_of(ModelRules::built_in(), "mixer.in_proj.weight", 1, 84).empty());
  // Two groups of four rows: eight rows on four ranks would be half a group each.
  const optim::ModelRule& rule = *rules.find("decoder.layers.0.mixer.in_proj.weight")->rule;
  BOOST_TEST(optim::find_uneven_segment(rule, 2) == nullptr);
  BOOST_REQUIRE(optim::find_uneven_segment(rule, 4) != nullptr);
  BOOST_TEST(optim::find_uneven_segment(rule, 4)->name == "B");
}

BOOST_AUTO_TEST_CASE(keys_of_segments_lead_to_their_row) {
  const optim::KeyRules rules{.layers_stacked = false};
  const auto found = optim::segment_of_key("decoder.layers.3.mixer.in_proj.weight.dt", rules);
  BOOST_REQUIRE(found);
  BOOST_TEST(found->rule->name == "mixer.in_proj.weight");
  BOOST_TEST(found->segment == 4u);
  BOOST_TEST(found->key == "decoder.layers.3.mixer.in_proj.weight");
  BOOST_TEST(
      optim::segment_of_key("mtp.layers.0.mtp_model_layer.layers.1.mixer.conv1d.bias.x", rules)
          .has_value());
  for (const char* key : {"decoder.layers.3.mixer.in_proj.weight", "decoder.layers.3.mixer.D",
                          "decoder.layers.3.mixer.in_proj.weight.query", "x", "mixer.conv1d.x"}) {
    BOOST_TEST(!optim::segment_of_key(key, rules), key);
  }
}

BOOST_AUTO_TEST_CASE(args_tell_which_of_two_names_has_a_key) {
  const std::string key = "decoder.layers.3.mixer.conv1d.weight";
  const auto name_by = [&](const ModelRules& table) {
    return optim::state_dict_name({key}, {.layers_stacked = false, .table = &table});
  };
  BOOST_TEST(name_by(Args().rules()) == key);
  BOOST_TEST(name_by(Args().put("expert_gtp_weight_remat_size", 1).rules()) ==
             "decoder.layers.3.mixer.conv1d_weight");
}

BOOST_AUTO_TEST_CASE(layers_of_a_hybrid_depth_of_token_prediction_keep_their_order) {
  const ModelRules& rules = ModelRules::built_in();
  const char* const names[] = {"mtp.layers.0.eh_proj.weight",
                               "mtp.layers.0.mtp_model_layer.layers.0.mixer.out_proj.weight",
                               "mtp.layers.0.mtp_model_layer.layers.1.mixer.dt_bias",
                               "mtp.layers.0.mtp_model_layer.layers.10.mixer.dt_bias",
                               "mtp.layers.0.final_layernorm.weight",
                               "mtp.layers.1.enorm.weight"};
  for (size_t i = 1; i < std::size(names); ++i) {
    BOOST_TEST((rules.find(names[i - 1])->place < rules.find(names[i])->place), names[i]);
  }
  const std::string name = names[1];
  const optim::ShardedName sharded = optim::sharded_name(name, {});
  BOOST_TEST(sharded.key == name);
  BOOST_TEST(optim::state_dict_name(sharded, {}) == name);
}

BOOST_AUTO_TEST_CASE(the_row_that_would_be_enough_is_one_that_finds_the_name) {
  struct Case {
    const char *name, *part, *row, *split;
    optim::TensorSharing sharing;
  };
  const Case cases[] = {
      {"decoder.layers.3.mlp.fc9.weight",
       "layer",
       "mlp.fc9.weight",
       "rows",
       {true, optim::one_section(0, 8)}},
      {"decoder.layers.3.mlp.fc9.weight",
       "layer",
       "mlp.fc9.weight",
       "columns",
       {true, optim::one_section(1, 8)}},
      {"decoder.layers.0.mlp.experts.local_experts.12.fc9.weight",
       "layer",
       "mlp.experts.local_experts.{expert}.fc9.weight",
       "gated_rows",
       {true, optim::two_halves(0, 8)}},
      {"mtp.layers.0.gate.weight", "mtp", "gate.weight", "replicated", {true, std::nullopt}},
      {"embedding.kinds.weight", "embedding", "embedding.kinds.weight", "SPLIT", {}},
      {"lm_head.weight", "PART", "lm_head.weight", "SPLIT", {}},
      {"vision_model.class_token2", "vision", "vision_model.class_token2", "SPLIT", {}},
  };
  for (const auto& [name, part, row, split, sharing] : cases) {
    const std::string hint = optim::enough_row(name, sharing, ModelRules::built_in());
    const std::string json = R"({"part": ")" + std::string(part) + R"(", "name": ")" + row +
                             R"(", "split": ")" + split + "\"}";
    BOOST_TEST(hint.find(json) != hint.npos, hint);
    BOOST_TEST((hint.find("; SPLIT is") != hint.npos) == (std::string(split) == "SPLIT"));
    if (std::string(part) == "PART" || std::string(split) == "SPLIT") continue;
    const ModelRules rules = ModelRules::built_in().with(
        ModelRules::parse(R"({"schema_version": 1, "rules": [)" + json + "]}", "rules.json"));
    BOOST_REQUIRE(rules.find(name).has_value());
    BOOST_TEST(rules.find(name)->rule->name == row);
  }
}

BOOST_AUTO_TEST_CASE(rows_that_are_not_valid_are_refused_by_number_and_field) {
  const std::pair<const char*, const char*> rows[] = {
      {"[]", "is not a JSON object"},
      {"{\"schema_version\": 2, \"rules\": []}", "'schema_version' is not 1"},
      {"{\"schema_version\": 1, \"rules\": {}}", "'rules' is not a list"},
      {"{\"schema_version\": 1, \"rules\": [], \"x\": 1}", "has other keys"},
      {"{\"schema_version\": 1, \"rules\": [1]}", "is not an object"},
      {"{\"schema_version\": 1, \"rules\": [{\"name\": \"a\"}]}", "'' is not a valid 'part'"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\"}]}", "has no 'name'"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\", \"name\": 3}]}",
       "'name' is not a text"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\", \"name\": \"a\", "
       "\"buffer\": 1}]}",
       "'buffer' is neither true nor false"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\", \"name\": \"a\", "
       "\"split\": \"row\"}]}",
       "'row' is not a valid 'split'"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\", \"name\": \"a\", \"b\": 1}]}",
       "'b' is not a field of a row"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments"}]})",
       "'segments' and 'split' do not go together"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "rows",
           "segments": [{"name": "x", "rows": "1"}]}]})",
       "'segments' and 'split' do not go together"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments",
           "segments": [{"name": "x", "rows": "1"}, {"name": "x", "rows": "2"}]}]})",
       "needs a 'name' of its own and 'rows'"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments",
           "segments": [{"name": "x.y", "rows": "1"}]}]})",
       "'name' has a dot"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments",
           "segments": [{"name": "x", "rows": "1 +"}]}]})",
       "'1 +' is not an expression"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments",
           "segments": [{"name": "x", "rows": "1"}]}]})",
       "'segments' has one alone"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "split": "segments",
           "segments": [{"name": "x", "columns": "1"}]}]})",
       "'columns' is not a field of a row"},
      {R"({"schema_version": 1, "rules": [{"part": "layer", "name": "a", "when": "("}]})",
       "'(' is not an expression"},
      {"{\"schema_version\": 1, \"rules\": [{\"part\": \"layer\", \"name\": \"a\"}, "
       "{\"part\": \"layer\", \"name\": \"a\"}]}",
       "two rows named 'a'"},
  };
  for (const auto& [text, words] : rows) {
    BOOST_CHECK_EXCEPTION(ModelRules::parse(text, "mine.json"), ckpt::Error, [&](const auto& e) {
      BOOST_TEST(e.where().file == "mine.json");
      return e.code() == ckpt::ErrorCode::Corrupt &&
             std::string_view(e.what()).find(words) != std::string_view::npos;
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
