#include <optim/emerging_rules.h>
#include <optim/optimizer.h>

#include <boost/test/unit_test.hpp>

#include "support/errors.h"

// The configuration's coefficients on their way to the rules.
BOOST_AUTO_TEST_SUITE(rule_of_group)

using optim::OptimizerConfig;

// Every field with a value that no other has and that is no default.
OptimizerConfig config_of_distinct_values() {
  OptimizerConfig config;
  config.adam_beta1 = 0.61;
  config.adam_beta2 = 0.62;
  config.adam_eps = 0.63;
  config.decoupled_weight_decay = false;
  config.sgd_momentum = 0.64;
  config.muon_momentum = 0.65;
  config.muon_nesterov = !OptimizerConfig().muon_nesterov;
  config.muon_scale_mode = optim::MuonScaleMode::ShapeScaling;
  config.muon_fp32_matmul_prec = optim::MatmulPrecision::Highest;
  config.muon_coefficient_type = optim::NsCoefficients::Aol;
  config.muon_num_ns_steps = 7;
  config.muon_extra_scale_factor = 0.66;
  config.lion_beta1 = 0.67;
  config.lion_beta2 = 0.68;
  config.soap_shampoo_beta = 0.69;
  config.soap_precondition_frequency = 7;
  config.soap_use_kl_shampoo = false;
  config.adaptive_muon_moment2_method = optim::Moment2Method::NorMuon;
  config.adaptive_muon_beta2 = 0.7;
  config.adaptive_muon_eps = 0.71;
  return config;
}

template <class Rule>
Rule rule_by(const std::string& updated_by, const OptimizerConfig& config,
             const std::optional<optim::QkvSplit>& split = std::nullopt) {
  const optim::ParamGroup group = {.updated_by = updated_by};
  return *optim::rule_of_group(group, config, split).get_if<Rule>();
}

BOOST_AUTO_TEST_CASE(every_coefficient_of_the_configuration_reaches_its_rule) {
  const OptimizerConfig config = config_of_distinct_values();
  const auto adam = rule_by<optim::AdamRule>("adam", config);
  BOOST_TEST(adam.beta1 == 0.61);
  BOOST_TEST(adam.beta2 == 0.62);
  BOOST_TEST(adam.eps == 0.63);
  BOOST_TEST(!adam.decoupled_weight_decay);
  BOOST_TEST(rule_by<optim::SgdRule>("sgd", config).momentum == 0.64);
  const auto muon = rule_by<optim::MuonRule>("muon", config);
  BOOST_TEST(muon.momentum == 0.65);
  BOOST_TEST(muon.nesterov == config.muon_nesterov);
  BOOST_TEST((muon.scale_mode == optim::MuonScaleMode::ShapeScaling));
  BOOST_TEST((muon.newton_schulz.precision == optim::MatmulPrecision::Highest));
  BOOST_TEST((muon.newton_schulz.coefficients == optim::NsCoefficients::Aol));
  BOOST_TEST(muon.newton_schulz.steps == 7);
  BOOST_TEST(muon.extra_scale_factor == 0.66);
  const auto lion = rule_by<optim::LionRule>("lion", config);
  BOOST_TEST(lion.beta1 == 0.67);
  BOOST_TEST(lion.beta2 == 0.68);
  const optim::ParamGroup by_soap = {.updated_by = "soap"};
  const auto soap =
      *optim::rule_of_group(by_soap, config, std::nullopt, optim::EmergingOptimizers::V0_2)
           .get_if<optim::SoapRule>();
  BOOST_TEST(soap.beta1 == 0.61);
  BOOST_TEST(soap.beta2 == 0.62);
  BOOST_TEST(soap.eps == 1e-8);  // the constructor's: the reference has no field for it
  BOOST_TEST(soap.shampoo_beta == 0.69);
  BOOST_TEST(soap.precondition_frequency.frequency == 7);
  BOOST_TEST(!soap.use_kl_shampoo);
  const auto adaptive = rule_by<optim::AdaptiveMuonRule>("adaptive_muon", config);
  BOOST_TEST(adaptive.muon.momentum == 0.65);
  BOOST_TEST(adaptive.muon.newton_schulz.steps == 7);
  BOOST_TEST((adaptive.moment2_method == optim::Moment2Method::NorMuon));
  BOOST_TEST(adaptive.beta2 == 0.7);
  BOOST_TEST(adaptive.eps == 0.71);
  BOOST_TEST(adaptive.scales_twice);  // as Megatron's own class does
}

BOOST_AUTO_TEST_CASE(a_split_reaches_muon_only_where_the_configuration_wants_it) {
  OptimizerConfig config;
  const optim::QkvSplit split = {4, 2, 1};
  for (const bool splits : {true, false}) {
    config.muon_split_qkv = splits;
    BOOST_TEST(rule_by<optim::MuonRule>("muon", config, split).qkv_split.has_value() == splits);
  }
}

BOOST_AUTO_TEST_CASE(an_eps_of_the_group_goes_before_the_configurations) {
  const optim::ParamGroup group = {.others = {{"eps", 0.5}}, .updated_by = "adam"};
  BOOST_TEST(optim::rule_of_group(group, {}, std::nullopt).get_if<optim::AdamRule>()->eps == 0.5);
}

BOOST_AUTO_TEST_CASE(an_override_that_is_not_a_number_is_refused_by_name) {
  const optim::ParamGroup group = {.others = {{"eps", std::string("small")}}, .updated_by = "adam"};
  const auto error = test::error_of([&] { optim::rule_of_group(group, {}, std::nullopt); });
  BOOST_REQUIRE(error);
  BOOST_TEST(error->problem() == "an override of eps is not a number");
}

BOOST_AUTO_TEST_SUITE_END()
