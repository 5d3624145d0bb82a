// What a report says of the next step.
#include <boost/test/unit_test.hpp>

#include <training/continuation.h>

#include "support/generated_state.h"

using optim::NextStep;

namespace {

class Source {
 public:
  // Without dropout.
  Source(const char* optimizer, bool is_gated) : picker_(1), generated_(picker_, shape(is_gated)) {
    set("hidden_dropout", tree().real(0));
    set("attention_dropout", tree().real(0));
    set("optimizer", tree().str(optimizer));
    set("swiglu", tree().boolean(is_gated));
    set("muon_tp_mode", tree().str("duplicated"));
    for (optim::ChainedOptimizerState& one : generated_.state().chain) {
      one.step_layout = optim::StepLayout::PerParamNumber;
      one.step_number = 3;
    }
    generated_.state().grid.sizes = {};
    generated_.state().grid.pipeline.pipeline_parallel = 1;
    result_ = {generated_.state().grid, generated_.state().filed};
  }

  ckpt::ValueTree& tree() { return generated_.state().common.tree; }
  void set(const char* name, ckpt::NodeId value) {
    tree().put(generated_.state().args().id(), name, value);
  }
  optim::ContinuedAs& result() { return result_; }
  uint64_t vocabulary_rows() {
    for (const optim::TrainedParam& param : generated_.state().params) {
      if (param.info.name == "embedding.word_embeddings.weight") return param.weight->shape[0];
    }
    return 0;
  }
  optim::Continuation continuation() { return optim::continuation_of(generated_.state(), result_); }

 private:
  static test::ModelShape shape(bool is_gated) {
    test::ModelShape shape;
    shape.is_gated = is_gated;
    return shape;
  }

  test::Picker picker_;
  test::GeneratedState generated_;
  optim::ContinuedAs result_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(continuation)

BOOST_AUTO_TEST_CASE(the_same_sizes_step_as_the_source_does) {
  Source source("muon", true);
  BOOST_TEST((source.continuation() == optim::Continuation{NextStep::Same, {}}));
}

BOOST_AUTO_TEST_CASE(other_ranks_sum_in_another_order) {
  using Sizes = optim::ParallelSizes;
  for (const auto size :
       {&Sizes::data_parallel, &Sizes::context_parallel, &Sizes::tensor_parallel}) {
    Source source("muon", false);
    source.result().grid.sizes.*size = 2;
    BOOST_TEST((source.continuation() == optim::Continuation{NextStep::OrderOfSums, {}}));
  }
}

BOOST_AUTO_TEST_CASE(other_buckets_and_other_owners_sum_in_another_order) {
  Source source("adam", false);
  source.result().has_other_buckets = true;
  BOOST_TEST((source.continuation().next_step == NextStep::OrderOfSums));
  source.result() = {source.result().grid,
                     {.is_layer_wise = false, .optimizers = {&optim::kFlatFile}}};
  BOOST_TEST((source.continuation().next_step == NextStep::OrderOfSums));
}

BOOST_AUTO_TEST_CASE(muon_over_other_parts_of_a_matrix_is_another_step) {
  Source gated("muon", true);
  gated.result().grid.sizes.tensor_parallel = 2;
  BOOST_TEST((gated.continuation().next_step == NextStep::Different));
  Source blockwise("muon", false);
  blockwise.set("muon_tp_mode", blockwise.tree().str("blockwise"));
  blockwise.result().grid.sizes.tensor_parallel = 2;
  BOOST_TEST((blockwise.continuation().next_step == NextStep::Different));
  BOOST_TEST_REQUIRE(blockwise.continuation().reasons.size() == 1u);
  BOOST_TEST(blockwise.continuation().reasons[0].find("blockwise") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(adam_does_not_mind_which_rank_has_a_gate) {
  Source source("adam", true);
  source.result().grid.sizes.tensor_parallel = 2;
  BOOST_TEST((source.continuation().next_step == NextStep::OrderOfSums));
}

BOOST_AUTO_TEST_CASE(other_random_numbers_matter_where_they_are_used) {
  Source source("adam", false);
  source.result().is_seeded_anew = true;
  BOOST_TEST((source.continuation().next_step == NextStep::Same));
  source.set("attention_dropout", source.tree().real(0.1));
  BOOST_TEST((source.continuation().next_step == NextStep::Different));
}

// megatron/core/tensor_parallel/cross_entropy.py sums over them.
BOOST_AUTO_TEST_CASE(rows_of_padding_are_logits_of_the_loss) {
  Source source("adam", false);
  const uint64_t stored = source.vocabulary_rows();
  source.result().vocabulary_rows = stored;
  BOOST_TEST((source.continuation().next_step == NextStep::Same));
  source.result().vocabulary_rows = stored + 8;
  const optim::Continuation found = source.continuation();
  BOOST_TEST((found.next_step == NextStep::Different));
  BOOST_TEST_REQUIRE(found.reasons.size() == 1u);
  BOOST_TEST(found.reasons[0].find(std::to_string(stored + 8) + " rows") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
