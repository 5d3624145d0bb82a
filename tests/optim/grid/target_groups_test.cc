// A changed number of expert parallel ranks splits groups of parameters, or joins them.
#include "grid/target_groups.h"

#include <boost/test/unit_test.hpp>

#include "support/errors.h"
#include "support/generated_state.h"

using ckpt::NodeId;
using ckpt::Value;
using test::contains;
using test::GeneratedState;

namespace {

constexpr test::ModelShape kMoe = {.layers = 2, .experts = 4};

optim::ParallelSizes with_experts_on(uint32_t expert_parallel) {
  optim::ParallelSizes sizes;
  sizes.data_parallel = expert_parallel;
  sizes.expert_parallel = expert_parallel;
  return sizes;
}

optim::TargetGroups groups_at(const optim::FiledState& state, uint32_t expert_parallel) {
  return optim::target_groups(state, with_experts_on(expert_parallel));
}

// The state of a model with experts, whose groups are those of `expert_parallel` ranks.
class Grouped {
 public:
  explicit Grouped(uint32_t expert_parallel) : random_(1), generated_(random_, kMoe) {
    optim::FiledState& state = generated_.state();
    const optim::TargetGroups groups = groups_at(state, expert_parallel);
    std::vector<std::vector<NodeId>> stated(state.chain.size());
    for (size_t i = 0; i < groups.groups.size(); ++i) {
      const NodeId copy = tree().copy(ckpt::ValueTree(tree()).value(groups.stated[i]));
      tree().put(copy, "is_expert_parallel", tree().boolean(groups.groups[i].is_expert_parallel));
      stated[groups.optimizer[i]].push_back(copy);
    }
    optim::group_params(state.args(), with_experts_on(expert_parallel), state.params);
    for (size_t i = 0; i < stated.size(); ++i) state.chain[i].groups = stated[i];
  }

  optim::FiledState& state() { return generated_.state(); }
  ckpt::ValueTree& tree() { return generated_.tree(); }
  Value group(uint32_t optimizer, uint32_t index) {
    return tree().value(state().chain.at(optimizer).groups.at(index));
  }

 private:
  test::Picker random_;
  GeneratedState generated_;
};

std::vector<std::string> names_of(const optim::ParamGroup& group) {
  std::vector<std::string> names;
  for (const optim::GroupedParam& param : group.params) names.push_back(param.info.name);
  return names;
}

bool has_experts(const optim::ParamGroup& group) {
  return std::ranges::any_of(
      names_of(group), [](const std::string& name) { return optim::expert_in(name).has_value(); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(target_groups)

BOOST_AUTO_TEST_CASE(more_expert_ranks_give_experts_groups_of_their_own_with_the_same_settings) {
  Grouped one(1);
  const auto before = groups_at(one.state(), 1);
  const auto after = groups_at(one.state(), 2);
  BOOST_TEST(before.groups.size() == 3u);
  BOOST_REQUIRE_EQUAL(after.groups.size(), 4u);
  size_t params = 0;
  for (uint32_t i = 0; i < after.groups.size(); ++i) {
    const optim::ParamGroup& group = after.groups[i];
    params += group.params.size();
    for (const std::string& name : names_of(group)) {
      BOOST_TEST(optim::expert_in(name).has_value() == group.is_expert_parallel, name);
    }
    ckpt::ArchiveBuilder archive;
    const NodeId carried = optim::carry_group(one.state(), after, i, archive);
    const Value settings = archive.tree().value(carried);
    const Value stated = one.tree().value(after.stated[i]);
    BOOST_TEST(settings.at("is_expert_parallel").as_bool() == group.is_expert_parallel);
    BOOST_TEST(settings.at("lr").as_float() == stated.at("lr").as_float());
    BOOST_TEST(settings.item_count() == stated.item_count());
  }
  BOOST_TEST(params == one.state().params.size());
}

BOOST_AUTO_TEST_CASE(one_expert_rank_joins_the_groups_of_experts_with_the_others) {
  Grouped two(2);
  const auto after = groups_at(two.state(), 1);
  BOOST_REQUIRE_EQUAL(after.groups.size(), 3u);
  BOOST_TEST(has_experts(after.groups[0]));
  for (uint32_t i = 0; i < after.groups.size(); ++i) {
    BOOST_TEST(!after.groups[i].is_expert_parallel);
    ckpt::ArchiveBuilder archive;
    const NodeId carried = optim::carry_group(two.state(), after, i, archive);
    BOOST_TEST(!archive.tree().value(carried).at("is_expert_parallel").as_bool());
  }
  BOOST_TEST(after.of_optimizer(0) == (std::vector<uint32_t>{0}));
  BOOST_TEST(after.of_optimizer(1) == (std::vector<uint32_t>{1, 2}));
}

BOOST_AUTO_TEST_CASE(groups_that_would_be_one_but_differ_are_refused_by_the_setting) {
  for (const char* const setting : {"lr", "weight_decay", "of_my_own"}) {
    Grouped two(2);
    two.tree().put(two.group(0, 1).id(), setting, two.tree().real(0.125));
    if (std::string_view(setting) == "of_my_own") {
      two.tree().put(two.group(0, 0).id(), setting, two.tree().real(0.25));
    }
    const auto error = test::error_of([&] { groups_at(two.state(), 1); });
    BOOST_REQUIRE_MESSAGE(error, setting);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(contains(error->problem(), "'" + std::string(setting) + "'"), error->what());
    BOOST_TEST(!error->where().key.empty());
    BOOST_TEST(!test::error_of([&] { groups_at(two.state(), 4); }));
  }
}

BOOST_AUTO_TEST_CASE(a_setting_that_only_one_of_two_groups_has_is_refused) {
  for (const uint32_t which : {0u, 1u}) {
    Grouped two(2);
    two.tree().put(two.group(0, which).id(), "of_my_own", two.tree().boolean(true));
    const auto error = test::error_of([&] { groups_at(two.state(), 1); });
    BOOST_REQUIRE(error);
    BOOST_TEST(contains(error->problem(), "'of_my_own'"), error->what());
  }
}

BOOST_AUTO_TEST_CASE(a_state_without_an_optimizer_has_no_groups) {
  Grouped one(1);
  one.state().chain.clear();
  BOOST_TEST(groups_at(one.state(), 2).groups.empty());
}

BOOST_AUTO_TEST_SUITE_END()
