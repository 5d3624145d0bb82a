// Parameter groups of a checkpoint are matched by what tells them apart, whatever their order.
#include "grid/target_groups.h"

#include <ckpt/value_tree.h>

#include <boost/test/unit_test.hpp>
#include <map>

using optim::ParamGroup;

namespace {

struct Stated {
  double wd_mult = 1;
  bool is_expert = false, is_decoupled = false;
};

// Dicts as a checkpoint states them.
std::vector<ckpt::Value> dicts(ckpt::ValueTree& tree, std::vector<Stated> groups) {
  std::vector<ckpt::Value> values;
  for (const Stated& group : groups) {
    const ckpt::NodeId node = tree.dict();
    tree.put(node, "wd_mult", tree.real(group.wd_mult));
    tree.put(node, "lr_mult", tree.real(1));
    tree.put(node, "is_expert_parallel", tree.boolean(group.is_expert));
    tree.put(node, "is_decoupled_lr", tree.boolean(group.is_decoupled));
    values.push_back(tree.value(node));
  }
  return values;
}

ParamGroup group(double wd_mult, bool is_expert = false, bool has_own_lr = false) {
  ParamGroup made;
  made.wd_mult = wd_mult;
  made.is_expert_parallel = is_expert;
  made.default_config = !has_own_lr;
  return made;
}

using Places = std::vector<size_t>;

}  // namespace

BOOST_AUTO_TEST_SUITE(stated_groups)

BOOST_AUTO_TEST_CASE(weight_decay_tells_groups_apart_that_stand_the_other_way_round) {
  ckpt::ValueTree tree;
  const auto stated = dicts(tree, {{.wd_mult = 0}, {.wd_mult = 1}});
  BOOST_TEST((match_stated_groups(stated, std::vector{group(1), group(0)}) == Places{1, 0}));
}

BOOST_AUTO_TEST_CASE(experts_have_groups_of_their_own) {
  ckpt::ValueTree tree;
  const auto stated = dicts(tree, {{.wd_mult = 1, .is_expert = true}, {.wd_mult = 1}});
  BOOST_TEST((match_stated_groups(stated, std::vector{group(1), group(1, true)}) == Places{1, 0}));
}

BOOST_AUTO_TEST_CASE(a_learning_rate_of_its_own_tells_a_group_where_the_checkpoint_says_so) {
  const std::vector wanted = {group(1), group(1, false, true)};
  ckpt::ValueTree tree;
  const auto says = dicts(tree, {{.is_decoupled = true}, {}});
  BOOST_TEST((match_stated_groups(says, wanted) == Places{1, 0}));
  const auto silent = dicts(tree, {{}, {}});  // as since 2026
  BOOST_TEST((match_stated_groups(silent, wanted) == Places{0, 1}));
}

BOOST_AUTO_TEST_CASE(groups_that_do_not_fit_keep_their_order) {
  ckpt::ValueTree tree;
  const auto stated = dicts(tree, {{.wd_mult = 0.5}, {.wd_mult = 1}});
  BOOST_TEST((match_stated_groups(stated, std::vector{group(1), group(0)}) == Places{0, 1}));
}

BOOST_AUTO_TEST_SUITE_END()
