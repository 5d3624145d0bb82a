// Every row of the table is found by the names and the keys that it stands for.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>

#include "model/model_rules.h"
#include "support/generated_model.h"

using optim::ModelPart;
using optim::ModelRule;
using optim::ModelRules;

namespace {

constexpr std::string_view kExpert = "{expert}";

std::string with_expert(std::string name, uint32_t expert) {
  const size_t found = name.find(kExpert);
  if (found != name.npos) name.replace(found, kExpert.size(), std::to_string(expert));
  return name;
}

// What a row is called in layer 3, of expert 5.
std::string name_of(const ModelRule& rule) {
  const std::string name = with_expert(rule.name, 5);
  if (rule.part == ModelPart::Layer) return "decoder.layers.3." + name;
  if (rule.part == ModelPart::Mtp) return "mtp.layers.3." + name;
  return name;
}

bool is_of_expert(const ModelRule& rule) { return rule.name.find(kExpert) != rule.name.npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(model_rule_rows)

BOOST_AUTO_TEST_CASE(each_row_is_found_by_its_name_in_the_order_of_the_table) {
  const ModelRules& rules = ModelRules::built_in();
  std::set<std::string> names;
  uint32_t row = 0;
  for (const ModelRule& rule : rules.rows()) {
    const std::string name = name_of(rule);
    BOOST_TEST(names.insert(name).second, name);
    const auto found = rules.find(name);
    BOOST_REQUIRE_MESSAGE(found, name);
    BOOST_TEST(found->rule == &rule, name);
    BOOST_TEST(found->place.row == row++, name);
    BOOST_TEST(found->place.expert == (is_of_expert(rule) ? 5u : 0u), name);
    const bool is_numbered = rule.part == ModelPart::Layer || rule.part == ModelPart::Mtp;
    BOOST_TEST(found->place.layer == (is_numbered ? 3u : 0u), name);
  }
}

BOOST_AUTO_TEST_CASE(each_row_of_a_layer_is_found_in_the_layer_of_multi_token_prediction) {
  const ModelRules& rules = ModelRules::built_in();
  const auto first = rules.find("mtp.layers.3.eh_proj.weight");
  const auto last = rules.find("mtp.layers.3.final_layernorm.weight");
  const auto next = rules.find("mtp.layers.4.enorm.weight");
  BOOST_REQUIRE((first && last && next));
  for (const ModelRule& rule : rules.rows()) {
    if (rule.part != ModelPart::Layer) continue;
    const std::string name = "mtp.layers.3.mtp_model_layer." + with_expert(rule.name, 5);
    const auto found = rules.find(name);
    BOOST_REQUIRE_MESSAGE(found, name);
    BOOST_TEST(found->rule == &rule, name);
    BOOST_TEST((first->place < found->place && found->place < last->place), name);
  }
  BOOST_TEST((last->place < next->place));
  BOOST_TEST((rules.find("decoder.final_layernorm.bias")->place < first->place));
  BOOST_TEST((next->place < rules.find("output_layer.weight")->place));
}

BOOST_AUTO_TEST_CASE(each_key_leads_to_its_row_with_the_flavor_that_calls_it_so) {
  const ModelRules& rules = ModelRules::built_in();
  size_t keys = 0, local_keys = 0;
  for (const ModelRule& rule : rules.rows()) {
    const bool grouped = optim::is_of_grouped_experts(rule);
    if (!rule.key.empty()) {
      ++keys;
      BOOST_TEST(rules.find_by_key(rule.key, {.local = false, .grouped = grouped}) == &rule,
                 rule.key);
      BOOST_TEST(rules.find_by_key(rule.key, {.local = true, .grouped = grouped}) == &rule,
                 rule.key);
      const ModelRule* const other =
          rules.find_by_key(rule.key, {.local = false, .grouped = !grouped});
      BOOST_TEST((other == &rule) == !optim::is_of_experts(rule), rule.key);
    }
    if (!rule.local_key.empty()) {
      ++local_keys;
      BOOST_TEST(rules.find_by_key(rule.local_key, {.local = true}) == &rule, rule.local_key);
      BOOST_TEST(rules.find_by_key(rule.local_key, {.local = false}) == nullptr, rule.local_key);
    }
  }
  BOOST_TEST(keys > 10u);
  BOOST_TEST(local_keys == 4u);
  BOOST_TEST(rules.find_by_key("mlp.router.weight", {}) == nullptr);
}

// TransformerEngine fuses the norm in front of a linear layer into it, and registers it first.
BOOST_AUTO_TEST_CASE(names_of_transformer_engine_are_in_the_order_in_which_it_registers_them) {
  constexpr const char* kNames[] = {"self_attention.linear_proj.weight",
                                    "self_attention.linear_proj.bias",
                                    "self_attention.linear_proj._extra_state",
                                    "self_attention.linear_qkv.layer_norm_weight",
                                    "self_attention.linear_qkv.layer_norm_bias",
                                    "self_attention.linear_qkv.weight",
                                    "self_attention.linear_qkv.bias",
                                    "self_attention.linear_qkv._extra_state",
                                    "pre_mlp_layernorm.weight",
                                    "mlp.linear_fc1.layer_norm_weight",
                                    "mlp.linear_fc1.layer_norm_bias",
                                    "mlp.linear_fc1.weight",
                                    "mlp.linear_fc1.bias",
                                    "mlp.linear_fc1._extra_state",
                                    "mlp.linear_fc2.weight",
                                    "mlp.linear_fc2.bias",
                                    "mlp.router.weight",
                                    "mlp.experts.linear_fc1.weight0",
                                    "mlp.experts.linear_fc1.weight1",
                                    "mlp.experts.linear_fc1.weight12",
                                    "mlp.experts.linear_fc2.weight0",
                                    "mlp.shared_experts.linear_fc1.weight"};
  std::optional<optim::ModelPlace> last;
  for (const char* const name : kNames) {
    const auto found = ModelRules::built_in().find("decoder.layers.7." + std::string(name));
    BOOST_REQUIRE_MESSAGE(found, name);
    if (last) BOOST_TEST((*last < found->place), name);
    last = found->place;
  }
}

BOOST_AUTO_TEST_CASE(keys_of_a_sharded_state_dict_lead_back_to_the_names_of_any_model) {
  test::Picker random(1);
  for (int i = 0; i < 300; ++i) {
    const test::ModelShape shape = test::random_shape_of_model(random);
    const optim::ModelFacts facts = test::facts_of(shape);
    const optim::KeyRules rules{facts.layer_norm_renamed, shape.layers, facts.layers_stacked,
                                facts.expert_count, facts.experts_grouped};
    std::set<std::pair<std::string, std::pair<uint32_t, uint32_t>>> seen;
    for (const auto& [name, size] : test::ParamList(shape).take()) {
      const optim::ShardedName sharded = optim::sharded_name(name, rules);
      BOOST_REQUIRE_EQUAL(optim::state_dict_name(sharded, rules), name);
      const std::pair place(sharded.layer.value_or(0), sharded.expert.value_or(0));
      BOOST_REQUIRE_MESSAGE(seen.insert({sharded.key, place}).second, name);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
