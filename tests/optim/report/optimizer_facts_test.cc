// Which update rule a stored parameter group is of, and what a rank has to do.
#include <training/optimizer_facts.h>

#include <boost/test/unit_test.hpp>

namespace {

using optim::describe_optimizers;

// Groups whose settings live as long as this.
class Groups {
 public:
  optim::StoredGroup& add(uint32_t optimizer, std::vector<const char*> settings,
                          uint64_t param_count = 1) {
    groups_.push_back({"", optimizer, static_cast<uint32_t>(groups_.size()), {}, param_count, {}});
    for (const char* name : settings) set(name, 0.5);
    return groups_.back();
  }
  void set(const char* name, double value) {
    groups_.back().settings.emplace_back(name, tree_.value(tree_.real(value)));
  }
  void set_flag(const char* name, bool value) {
    groups_.back().settings.emplace_back(name, tree_.value(tree_.boolean(value)));
  }
  const std::vector<optim::StoredGroup>& all() const { return groups_; }

 private:
  ckpt::ValueTree tree_;
  std::vector<optim::StoredGroup> groups_;
};

std::string rule_of(Groups& groups, const std::string& optimizer = "") {
  optim::RunFacts run;
  run.optimizer = optimizer;
  return describe_optimizers(groups.all(), run).at(0).rule;
}

std::string rule_with(std::vector<const char*> settings, const std::string& optimizer = "") {
  Groups groups;
  groups.add(0, std::move(settings));
  return rule_of(groups, optimizer);
}

std::vector<optim::RankLoad> loads(std::vector<double> costs) {
  std::vector<optim::RankLoad> ranks;
  for (const double cost : costs) {
    ranks.push_back({static_cast<uint32_t>(ranks.size()), 1, 1, 1, cost});
  }
  return ranks;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer_facts)

BOOST_AUTO_TEST_CASE(a_rule_is_told_by_the_settings_that_only_it_has) {
  BOOST_TEST(rule_with({"betas", "eps"}) == "Adam");
  BOOST_TEST(rule_with({"betas"}) == "Lion");
  BOOST_TEST(rule_with({"betas", "eps", "shampoo_beta"}, "soap") == "SOAP");
  BOOST_TEST(rule_with({"momentum", "dampening"}) == "SGD");
  BOOST_TEST(rule_with({"momentum"}, "dist_muon") == "Muon");
  BOOST_TEST(rule_with({"momentum"}, "adaptive_muon") == "AdaptiveMuon");
  BOOST_TEST(rule_with({"momentum"}) == "optimizer");
}

BOOST_AUTO_TEST_CASE(decoupled_weight_decay_makes_adam_adamw) {
  Groups decoupled, coupled;
  decoupled.add(0, {"betas", "eps"});
  decoupled.set_flag("decoupled_weight_decay", true);
  coupled.add(0, {"betas", "eps"});
  coupled.set_flag("decoupled_weight_decay", false);
  BOOST_TEST(rule_of(decoupled) == "AdamW");
  BOOST_TEST(rule_of(coupled) == "Adam");
}

BOOST_AUTO_TEST_CASE(groups_of_one_rule_are_told_together) {
  Groups groups;
  for (const double decay : {0.1, 0.0, 0.1}) {
    groups.add(1, {"betas", "eps"}, 10);
    groups.set("lr", 0.0081451);
    groups.set("weight_decay", decay);
  }
  const auto facts = describe_optimizers(groups.all(), {});
  BOOST_REQUIRE(facts.size() == 1u);
  BOOST_TEST(facts[0].rule == "Adam");
  BOOST_TEST(*facts[0].parameter_count == 30u);
  BOOST_TEST((facts[0].learning_rates == std::vector{0.0081451}));
  BOOST_TEST((facts[0].weight_decays == std::vector{0.1, 0.0}));
}

BOOST_AUTO_TEST_CASE(parameters_that_rank_files_share_are_not_counted) {
  Groups groups;
  groups.add(0, {"betas", "eps"}, 10).file = "a.pt";
  groups.add(0, {"betas", "eps"}, 10).file = "b.pt";
  BOOST_TEST(!describe_optimizers(groups.all(), {}).at(0).parameter_count);
}

BOOST_AUTO_TEST_CASE(the_step_is_the_largest_that_a_group_states) {
  Groups groups;
  BOOST_TEST(!optim::step_of_groups(groups.all()));
  groups.add(0, {"lr"});
  groups.set("step", 3);
  groups.add(0, {"lr"});
  groups.set("step", 7);
  BOOST_TEST(*optim::step_of_groups(groups.all()) == 7);
}

BOOST_AUTO_TEST_CASE(balance_is_told_for_two_ranks_and_more) {
  BOOST_TEST(optim::balance_of({}).empty());
  BOOST_TEST(optim::balance_of(loads({1})).empty());
  BOOST_TEST(optim::balance_of(loads({0, 0})).empty());
  BOOST_TEST((optim::balance_of(loads({3, 2})) == std::vector{1.2, 0.8}));
}

BOOST_AUTO_TEST_SUITE_END()
