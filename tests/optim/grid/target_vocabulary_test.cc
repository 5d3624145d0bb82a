// Rows of the vocabulary at another tensor parallel size: padding may come and go, true rows never.
#include <boost/test/unit_test.hpp>

#include <training/size_change.h>

#include "support/errors.h"
#include "support/generated_model.h"

using test::contains;

namespace {

optim::FiledState state_of(uint64_t vocabulary, uint64_t divisor, uint64_t rows) {
  return test::state_of_shape(
      {.vocabulary = vocabulary, .vocabulary_divisor = divisor, .vocabulary_rows = rows});
}

uint64_t rows_at(const optim::FiledState& state, uint32_t tensor,
                 std::optional<uint64_t> vocabulary = {}) {
  optim::SizeChange change;
  change.tensor_parallel = tensor;
  change.vocabulary = vocabulary;
  return optim::target_vocabulary(state, optim::target_grid(state, change), change);
}

optim::FiledState with_unknown_size(optim::FiledState state) {
  state.facts.vocabulary.reset();
  return state;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(target_vocabulary)

BOOST_AUTO_TEST_CASE(padding_follows_the_divisor_and_the_tensor_parallel_size) {
  const auto state = state_of(21, 4, 24);
  BOOST_TEST(rows_at(state, 1) == 24u);
  BOOST_TEST(rows_at(state, 2) == 24u);
  BOOST_TEST(rows_at(state, 4) == 32u);
  BOOST_TEST(rows_at(state_of(21, 4, 128), 1) == 128u);  // as it was, at the same size
}

BOOST_AUTO_TEST_CASE(padding_of_a_multiple_or_more_is_no_padding) {
  const auto state = state_of(21, 4, 128);
  for (const uint32_t tensor : {2u, 4u}) {
    const auto error = test::error_of([&] { rows_at(state, tensor); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(error->where().key == "args.vocab_size");
    BOOST_TEST(contains(error->problem(), "is 21, but embedding.word_embeddings.weight has 128"));
    BOOST_TEST(contains(error->problem(), "at TP 1 keeps below 4"));
    BOOST_TEST(contains(error->hint(), "--vocab-size"));
  }
  BOOST_TEST(rows_at(state, 2, 21) == 24u);
  BOOST_TEST(rows_at(state, 2, 126) == 128u);
}

BOOST_AUTO_TEST_CASE(rows_may_be_those_of_a_larger_size_that_the_model_can_have) {
  auto state = state_of(21, 4, 32);  // 24 at TP 1 and 2, 32 at TP 4
  state.facts.attention_heads = 4;
  BOOST_TEST(!optim::contradicted_vocabulary(state));
  BOOST_TEST(rows_at(state, 2) == 24u);
  state.facts.query_groups = 2;
  BOOST_TEST(optim::contradicted_vocabulary(state).has_value());
  state.facts.query_groups = 4;
  BOOST_TEST(!optim::contradicted_vocabulary(state));
  state.facts.attention_heads = 1;
  BOOST_TEST(optim::contradicted_vocabulary(state).has_value());
}

BOOST_AUTO_TEST_CASE(a_null_tokenizer_has_one_token_more) {
  auto state = state_of(24, 4, 28);
  state.facts.has_end_token = true;
  state.grid.sizes.tensor_parallel = 2;  // of which 4 rows are less than a multiple
  BOOST_TEST(rows_at(state, 1) == 28u);
  state.facts.has_end_token = false;
  BOOST_TEST(rows_at(state, 1) == 24u);
}

BOOST_AUTO_TEST_CASE(the_token_of_a_null_tokenizer_is_not_padding) {
  auto state = state_of(24, 4, 32);
  state.facts.attention_heads = 2;
  state.grid.sizes.tensor_parallel = 2;
  BOOST_TEST(optim::contradicted_vocabulary(state).has_value());
  state.facts.has_end_token = true;  // the 25th, behind which 7 rows are padding
  BOOST_TEST(!optim::contradicted_vocabulary(state));
  BOOST_TEST(rows_at(state, 1) == 28u);
}

BOOST_AUTO_TEST_CASE(no_true_row_is_cut_at_any_size) {
  test::Picker random(1);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t vocabulary = test::pick(random, 1, 60), divisor = test::pick(random, 1, 8);
    const auto state =
        state_of(vocabulary, divisor, optim::padded_vocabulary(vocabulary, divisor, 1));
    const uint32_t tensor = test::flip(random) ? 4 : 2;
    const uint64_t rows = rows_at(state, tensor);
    BOOST_REQUIRE_GE(rows, vocabulary);
    BOOST_REQUIRE_EQUAL(rows % (divisor * tensor), 0u);
    BOOST_REQUIRE_LT(rows - vocabulary, divisor * tensor);
  }
}

BOOST_AUTO_TEST_CASE(embedding_and_output_layer_have_one_number_of_rows) {
  auto state = state_of(21, 4, 24);
  bool is_found = false;
  for (optim::TrainedParam& param : state.params) {
    if (param.info.name != "output_layer.weight") continue;
    ckpt::TensorEntry other = *param.weight;
    other.shape[0] = 20;
    param.weight = std::make_shared<ckpt::TensorEntry>(std::move(other));
    is_found = true;
  }
  BOOST_TEST_REQUIRE(is_found);
  for (const uint32_t tensor : {1U, 2U}) {
    const auto error = test::error_of([&] { rows_at(state, tensor); });
    BOOST_TEST_REQUIRE(error.has_value());
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(contains(error->what(), "has 20 rows, but embedding.word_embeddings.weight has 24"));
  }
}

BOOST_AUTO_TEST_CASE(a_size_that_is_given_counts_and_must_be_stored) {
  const auto state = state_of(21, 4, 24);
  BOOST_TEST(rows_at(with_unknown_size(state), 1, 10) == 12u);
  BOOST_TEST(rows_at(state, 2, 24) == 24u);
  const auto error = test::error_of([&] { rows_at(state, 2, 25); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
  BOOST_TEST(contains(error->problem(), "--vocab-size 25 is above the 24 rows"));
}

BOOST_AUTO_TEST_CASE(rows_of_an_unknown_size_stay_or_are_refused_by_the_option) {
  const auto state = with_unknown_size(state_of(21, 1, 22));
  BOOST_TEST(rows_at(state, 1) == 22u);
  BOOST_TEST(rows_at(state, 2) == 22u);
  const auto error = test::error_of([&] { rows_at(state, 4); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
  BOOST_TEST(contains(error->problem(), "22 rows of the vocabulary"));
  BOOST_TEST(contains(error->problem(), "--tp 4"));
  BOOST_TEST(contains(error->hint(), "--vocab-size"));
  BOOST_TEST(rows_at(state, 4, 21) == 24u);
}

BOOST_AUTO_TEST_CASE(a_model_without_a_vocabulary_has_no_rows) {
  auto state = state_of(21, 4, 24);
  std::erase_if(state.params, [](const optim::TrainedParam& param) {
    return param.info.name.starts_with("embedding.") || param.info.name == "output_layer.weight";
  });
  state.model.clear();
  optim::RunGrid grid;
  grid.sizes.tensor_parallel = 2;
  BOOST_TEST(optim::target_vocabulary(state, grid, {}) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
