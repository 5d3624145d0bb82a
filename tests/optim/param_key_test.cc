#include <optim/param_key.h>

#include <string>
#include <unordered_set>

#include <boost/test/unit_test.hpp>

#include "optim/expect_error.h"
#include "optim/golden_json.h"

namespace {

using optim::ParamInfo;
using optim::ParamKey;
using optim::ParamPredicate;
using optim::ParamWithNamePredicate;

ParamInfo vector_param(std::string name) { return {.name = std::move(name), .shape = {10}}; }

ParamPredicate is_vector(const std::string& name) {
  return {name, [](const ParamInfo& param) { return param.shape.size() == 1; }};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(param_key)

BOOST_AUTO_TEST_CASE(globs_match_what_python_fnmatch_matches) {
  size_t checked = 0;
  for (const auto& row : golden("fnmatch.json")) {
    const auto glob = row[0].get<std::string>();
    const auto matching = row[2].get<std::vector<std::string>>();
    for (const auto& text : row[1]) {
      const auto word = text.get<std::string>();
      const bool expected = std::find(matching.begin(), matching.end(), word) != matching.end();
      BOOST_TEST(optim::glob_matches(glob, word) == expected,
                 "'" << glob << "' ~ '" << word << "'");
      ++checked;
    }
  }
  BOOST_TEST(checked > 10000u);
}

BOOST_AUTO_TEST_CASE(globs_take_bytes_that_are_not_utf8_as_single_characters) {
  BOOST_TEST(optim::glob_matches("a?c",
                                 "a\xFF"
                                 "c"));
  BOOST_TEST(optim::glob_matches("\xC3", "\xC3"));
  BOOST_TEST(!optim::glob_matches("?", "\xC3\xC3"));
  BOOST_TEST(optim::glob_matches("?", "\xF0\x9F\x98\x80"));
}

BOOST_AUTO_TEST_CASE(a_glob_of_many_stars_takes_quadratic_time_at_most) {
  std::string glob;
  for (int i = 0; i < 1000; ++i) glob += "*a";
  BOOST_TEST(!optim::glob_matches(glob + "b", std::string(5000, 'a')));
  BOOST_TEST(optim::glob_matches(glob, std::string(5000, 'a')));
}

// The two examples of Megatron-Core's documentation.
BOOST_AUTO_TEST_CASE(predicates_are_called_and_compare_and_hash_by_name) {
  const ParamPredicate s1 = is_vector("s1");
  const ParamPredicate copy{"s1", [](const ParamInfo&) { return false; }};
  BOOST_TEST(s1(vector_param("w")));
  BOOST_TEST((s1 == copy));
  BOOST_TEST((std::unordered_set<ParamPredicate>{s1, copy}.size() == 1u));
  BOOST_TEST(!(s1 == is_vector("s2")));
}

BOOST_AUTO_TEST_CASE(predicates_with_names_are_called_and_compare_and_hash_by_name) {
  const auto has = [](std::string_view name, std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  const ParamWithNamePredicate not_qkln{
      "s1_not_qkln", [&](const ParamInfo& param, std::string_view name) {
        return (param.shape.size() == 1 || name.ends_with(".bias")) &&
               !(has(name, "q_layernorm.") || has(name, "k_layernorm."));
      }};
  const ParamWithNamePredicate copy{"s1_not_qkln",
                                    [](const ParamInfo&, std::string_view) { return false; }};
  BOOST_TEST(not_qkln(vector_param(""), "interesting.bias"));
  BOOST_TEST(!not_qkln(vector_param(""), "interesting.q_layernorm.bias"));
  BOOST_TEST((not_qkln == copy));
  BOOST_TEST((std::unordered_set<ParamWithNamePredicate>{not_qkln, copy}.size() == 1u));
}

BOOST_AUTO_TEST_CASE(a_key_matches_when_any_of_its_members_does) {
  ParamInfo param{.name = "decoder.w", .shape = {2, 2}};
  param.attributes.shared = true;
  param.attributes.others = {"tagged"};
  const ParamPredicate never{"never", [](const ParamInfo&) { return false; }};
  const ParamWithNamePredicate by_name{
      "by_name", [](const ParamInfo&, std::string_view name) { return name == "other"; }};
  const auto matches = [&](const ParamKey& key, std::string_view name = "decoder.w") {
    return key.matches(param, name);
  };
  BOOST_TEST(!matches({}));
  BOOST_TEST(matches({.name = {"x*", "*.w"}}));
  BOOST_TEST(!matches({.name = {"*.W"}}));
  BOOST_TEST(matches({.attr = {"is_qkv", "shared"}}));
  BOOST_TEST(matches({.attr = {"tagged"}}));
  BOOST_TEST(!matches({.attr = {"absent", "partition_dim"}}));
  BOOST_TEST(!matches({.predicate = {never, is_vector("v")}}));
  BOOST_TEST(matches({.attr = {"shared"}, .predicate = {never}}));
  BOOST_TEST(matches({.with_name_predicate = {by_name}}, "other"));
  BOOST_TEST(!matches({.with_name_predicate = {by_name}}));
}

BOOST_AUTO_TEST_CASE(keys_are_equal_when_globs_attributes_and_predicate_names_are) {
  const ParamKey key{.name = {"a"}, .predicate = {is_vector("v")}};
  BOOST_TEST((key == ParamKey{.name = {"a"}, .predicate = {is_vector("v")}}));
  BOOST_TEST((key != ParamKey{.name = {"a"}, .predicate = {is_vector("w")}}));
  BOOST_TEST((key != ParamKey{.name = {"b"}, .predicate = {is_vector("v")}}));
}

BOOST_AUTO_TEST_CASE(attributes_are_those_that_megatrons_gpt_models_set) {
  for (const auto& model : golden("models.json")) {
    for (const auto& param : model["params"]) {
      const auto name = param[0].get<std::string>();
      const auto attributes = optim::megatron_attributes(name, param[1].size());
      BOOST_TEST_CONTEXT(model["model"] << " " << name) {
        BOOST_TEST(attributes.tensor_model_parallel ==
                   param[2].value("tensor_model_parallel", false));
        BOOST_TEST(attributes.is_embedding_or_output_parameter ==
                   param[2].value("is_embedding_or_output_parameter", false));
        BOOST_TEST(attributes.partition_dim ==
                   (attributes.tensor_model_parallel ? param[2]["partition_dim"].get<int>() : -1));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_element_count_that_does_not_fit_is_refused) {
  BOOST_TEST(optim::element_count({.name = "w", .shape = {}}) == 1u);
  BOOST_TEST(optim::element_count({.name = "w", .shape = {0, INT64_MAX, 8}}) == 0u);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{-1}, {INT64_MAX, 2}, {1 << 30, 1 << 30, 1 << 30}, {0, -1}}) {
    expect_error(ckpt::ErrorCode::InvalidArgument, "w",
                 [&] { optim::element_count({.name = "w", .shape = shape}); });
  }
}

BOOST_AUTO_TEST_SUITE_END()
