// How tensor-parallel ranks share a parameter: what its master states, then the rule of its name.
#include "grid/sharing_of_params.h"

#include <boost/test/unit_test.hpp>

#include "grid/build_state.h"
#include "support/errors.h"

namespace {

struct StatedSplit {
  bool is_parallel;
  int64_t dim;
};

// Of one rank of two, whose part has this shape.
optim::TensorSharing sharing_of(const std::string& name, const ckpt::Extents& on_rank,
                                StatedSplit stated) {
  optim::FiledState state;
  ckpt::ValueTree& tree = state.common.tree;
  const ckpt::NodeId attributes = tree.dict();
  tree.put(attributes, "tensor_model_parallel", tree.boolean(stated.is_parallel));
  tree.put(attributes, "partition_dim", tree.integer(stated.dim));
  state.attributes.emplace(optim::state_key(optim::kMasterState, name), attributes);
  optim::TrainedParam param = optim::make_param(std::make_shared<const ckpt::TensorEntry>(
      ckpt::TensorEntry{{}, name, ckpt::DType::Float32, on_rank, {}}));
  return optim::sharing_of(state, param, 2, tree);
}

constexpr StatedSplit kNothing = {false, -1};

}  // namespace

BOOST_AUTO_TEST_SUITE(sharing_of_params)

BOOST_AUTO_TEST_CASE(a_master_that_states_its_split_is_right) {
  const std::string own = "decoder.layers.0.self_attention.linear_of_ours.weight";
  const auto split = sharing_of(own, {8, 4}, {true, 1});
  BOOST_REQUIRE(split.is_split());
  BOOST_TEST(split.split->dim == 1u);
  BOOST_TEST(split.split->sections == std::vector<uint64_t>{8}, boost::test_tools::per_element());
  BOOST_TEST(!sharing_of("decoder.layers.0.mlp.linear_fc1.weight", {8, 4}, kNothing).is_split());
}

// torch.nn.Parameter without Megatron's attributes, one number for each head of the rank.
BOOST_AUTO_TEST_CASE(the_offset_of_a_learnable_softmax_is_split_though_it_states_nothing) {
  const auto sharing =
      sharing_of("decoder.layers.3.self_attention.core_attention.softmax_offset", {4}, kNothing);
  BOOST_REQUIRE(sharing.is_split());
  BOOST_TEST(sharing.split->dim == 0u);
  BOOST_TEST(sharing.split->sections == std::vector<uint64_t>{8}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
