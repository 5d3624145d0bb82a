#include "format/values/nesting.h"

#include <boost/test/unit_test.hpp>

using ckpt::DType;
using ckpt::Nesting;
using ckpt::NodeId;
using ckpt::ValueTree;

namespace {

template <class Build>
bool enters(Build build) {
  ValueTree tree;
  return Nesting().is_entered(tree.value(build(tree)));
}

NodeId tensor(ValueTree& tree) { return ckpt::add_tensor(tree, DType::Float32, {1}, "0"); }

}  // namespace

BOOST_AUTO_TEST_SUITE(nesting)

BOOST_AUTO_TEST_CASE(a_list_is_entered_for_a_tensor_a_mapping_or_such_a_list) {
  BOOST_TEST(enters([](ValueTree& t) { return t.list({t.integer(1), tensor(t)}); }));
  BOOST_TEST(enters([](ValueTree& t) { return t.list({t.dict()}); }));
  BOOST_TEST(enters([](ValueTree& t) { return t.list({ckpt::add_ordered_dict(t)}); }));
  BOOST_TEST(enters([](ValueTree& t) { return t.list({t.list(), t.list({tensor(t)})}); }));
}

BOOST_AUTO_TEST_CASE(other_lists_are_kept_whole) {
  BOOST_TEST(!enters([](ValueTree& t) { return t.list(); }));
  BOOST_TEST(!enters([](ValueTree& t) { return t.list({t.integer(1), t.list({t.str("a")})}); }));
  BOOST_TEST(!enters([](ValueTree& t) { return t.list({t.tuple({tensor(t)})}); }));
}

BOOST_AUTO_TEST_CASE(a_list_in_itself_ends) {
  BOOST_TEST(!enters([](ValueTree& t) {
    const NodeId list = t.list();
    t.append(list, t.list({list}));
    return list;
  }));
}

// 2^64 paths, a million levels: each list is searched once, and not on the call stack.
BOOST_AUTO_TEST_CASE(sharing_and_depth_cost_little) {
  ValueTree tree;
  NodeId list = tree.list();
  for (int i = 0; i < 64; ++i) list = tree.list({list, list});
  for (int i = 0; i < 1'000'000; ++i) list = tree.list({list});
  BOOST_TEST(!Nesting().is_entered(tree.value(list)));
}

BOOST_AUTO_TEST_CASE(mappings_are_those_of_the_standard_library) {
  ValueTree tree;
  const NodeId pairs = tree.dict();
  const NodeId counter = tree.object(ckpt::Construction::Reduce,
                                     tree.global("collections", "Counter"), tree.tuple({pairs}));
  BOOST_TEST(ckpt::as_mapping(tree.value(counter))->id() == pairs);
  BOOST_TEST(!ckpt::as_mapping(tree.value(tree.list())).has_value());
  const NodeId other =
      tree.object(ckpt::Construction::Reduce, tree.global("argparse", "Namespace"), tree.tuple());
  BOOST_TEST(!ckpt::as_mapping(tree.value(other)).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
