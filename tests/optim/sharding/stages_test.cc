#include "parallel/stages.h"

#include <ckpt/error.h>
#include <boost/test/unit_test.hpp>

BOOST_AUTO_TEST_SUITE(stages)

using optim::PipelineSplit;

// Decoder layers of each chunk in the order of the data: "first+count".
std::string layers_of(const PipelineSplit& split) {
  std::string text;
  for (const optim::ModelChunk& chunk : optim::model_chunks(split)) {
    if (!text.empty()) text += ' ';
    text += std::to_string(chunk.layers.first) + "+" + std::to_string(chunk.layers.count);
  }
  return text;
}

// Worked out by hand from the rules of get_num_layers_to_build and get_transformer_layer_offset.
BOOST_AUTO_TEST_CASE(layers_lie_where_megatron_builds_them) {
  const struct {
    PipelineSplit split;
    std::string layers;
  } rows[] = {
      {{.num_layers = 5}, "0+5"},
      {{.num_layers = 8, .pipeline_parallel = 2}, "0+4 4+4"},
      {{.num_layers = 8, .pipeline_parallel = 2, .chunks_per_stage = 2}, "0+2 2+2 4+2 6+2"},
      {{.num_layers = 8, .pipeline_parallel = 2, .chunks_per_stage = 4},
       "0+1 1+1 2+1 3+1 4+1 5+1 6+1 7+1"},
      {{.num_layers = 9, .pipeline_parallel = 4, .num_layers_in_first_pipeline_stage = 3},
       "0+3 3+2 5+2 7+2"},
      {{.num_layers = 9, .pipeline_parallel = 4, .num_layers_in_last_pipeline_stage = 0},
       "0+3 3+3 6+3 9+0"},
      {{.num_layers = 12,
        .pipeline_parallel = 3,
        .chunks_per_stage = 2,
        .num_layers_in_first_pipeline_stage = 2,
        .num_layers_in_last_pipeline_stage = 4},
       "0+1 1+3 4+2 6+1 7+3 10+2"},
      {{.num_layers = 3,
        .pipeline_parallel = 2,
        .num_layers_in_first_pipeline_stage = 1,
        .num_layers_in_last_pipeline_stage = 2},
       "0+1 1+2"},
      {{.num_layers = 6,
        .pipeline_parallel = 4,
        .account_for_embedding_in_pipeline_split = true,
        .account_for_loss_in_pipeline_split = true},
       "0+1 1+2 3+2 5+1"},
      {{.num_layers = 7,
        .pipeline_parallel = 2,
        .chunks_per_stage = 2,
        .account_for_embedding_in_pipeline_split = true},
       "0+1 1+2 3+2 5+2"},
      {{.num_layers = 5, .pipeline_parallel = 2, .pipeline_model_parallel_layout = "Et*2|t*3L"},
       "0+2 2+3"},
      {{.num_layers = 5,
        .pipeline_parallel = 2,
        .chunks_per_stage = 2,
        .pipeline_model_parallel_layout = "E|(tt|)*2tL"},
       "0+0 0+2 2+2 4+1"},
      {{.num_layers = 6,
        .pipeline_parallel = 2,
        .chunks_per_stage = 2,
        .hybrid_layer_pattern = "M*|-|MEM|"},
       "0+2 2+1 3+3 6+0"},
      {{.num_layers = 4, .pipeline_parallel = 2, .hybrid_layer_pattern = "M*-E"}, "0+2 2+2"},
  };
  for (const auto& row : rows) BOOST_TEST(layers_of(row.split) == row.layers);
}

BOOST_AUTO_TEST_CASE(a_hybrid_pattern_says_kinds_and_stages) {
  const optim::HybridPattern pattern = optim::parse_hybrid_pattern("M*|-|MEM|/*M/*M");
  BOOST_TEST(pattern.kinds == "M*-MEM");
  BOOST_TEST(pattern.behind == "/*M/*M");
  BOOST_TEST(pattern.stages == (std::vector<uint32_t>{2, 1, 3, 0}));
  BOOST_TEST(optim::layout_of(pattern, 2) == "Ett|t|ttt|mmL");
  const auto chunks = optim::model_chunks({.num_layers = 6, .pipeline_parallel = 2});
  BOOST_TEST(optim::pattern_for(pattern, chunks) == "M*-|MEM/*M/*M");
  BOOST_TEST(optim::pattern_for(pattern, optim::model_chunks({.num_layers = 6})) == "M*-MEM/*M/*M");
}

BOOST_AUTO_TEST_CASE(embedding_output_and_mtp_layers_have_their_chunks) {
  const PipelineSplit split = {.num_layers = 4,
                               .pipeline_parallel = 2,
                               .chunks_per_stage = 2,
                               .pipeline_model_parallel_layout = "Et|t|ttm|L",
                               .mtp_num_layers = 1};
  const auto chunks = optim::model_chunks(split);
  BOOST_TEST(chunks[0].has_embedding);
  BOOST_TEST(!chunks[0].has_output);
  BOOST_TEST(chunks[3].has_output);
  BOOST_TEST(chunks[2].mtp_layers.count == 1u);
  BOOST_TEST(chunks[2].stage == 0u);
  BOOST_TEST(chunks[2].chunk == 1u);
  using Chunks = std::vector<size_t>;
  BOOST_TEST(optim::chunks_with_word_embeddings(chunks, false) == (Chunks{0, 2}));
  BOOST_TEST(optim::chunks_with_word_embeddings(chunks, true) == (Chunks{0, 2, 3}));
  const auto without_layout =
      optim::model_chunks({.num_layers = 4, .pipeline_parallel = 2, .mtp_num_layers = 2});
  BOOST_TEST(without_layout[1].mtp_layers.count == 2u);
}

void expect_refused(const PipelineSplit& split, std::string_view words) {
  try {
    optim::model_chunks(split);
    BOOST_ERROR("nothing was refused for " << words);
  } catch (const ckpt::Error& error) {
    BOOST_TEST((error.code() == ckpt::ErrorCode::InvalidArgument));
    BOOST_TEST(std::string_view(error.what()).find(words) != std::string_view::npos, error.what());
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_divide_is_refused_by_number) {
  expect_refused({.num_layers = 7, .pipeline_parallel = 2}, "7 layers cannot be divided evenly");
  expect_refused({.num_layers = 8, .pipeline_parallel = 2, .chunks_per_stage = 3},
                 "4 layers of a pipeline stage");
  expect_refused({.num_layers = 8, .chunks_per_stage = 2}, "needs a pipeline parallel size above");
  expect_refused({.num_layers = 8, .pipeline_parallel = 0}, "at least 1");
  expect_refused({.num_layers = 9, .pipeline_parallel = 3, .num_layers_in_first_pipeline_stage = 2},
                 "7 other layers");
  expect_refused({.num_layers = 2, .pipeline_parallel = 2, .num_layers_in_first_pipeline_stage = 3},
                 "the first and last pipeline stage have 3 layers");
  expect_refused({.num_layers = 4,
                  .pipeline_parallel = 2,
                  .num_layers_in_first_pipeline_stage = 1,
                  .num_layers_in_last_pipeline_stage = 1},
                 "neither the first nor the last");
  expect_refused({.num_layers = 3,
                  .pipeline_parallel = 2,
                  .num_layers_in_first_pipeline_stage = 1,
                  .account_for_loss_in_pipeline_split = true},
                 "cannot be combined with");
  expect_refused(
      {.num_layers = 4, .pipeline_parallel = 2, .pipeline_model_parallel_layout = "Et|tt|tL"},
      "has 3 stages");
  expect_refused(
      {.num_layers = 4, .pipeline_parallel = 2, .pipeline_model_parallel_layout = "Et|tL"},
      "2 decoder and 0 MTP layers, the model 4 and 0");
  expect_refused({.num_layers = 4, .pipeline_parallel = 2, .hybrid_layer_pattern = "M|*|-E"},
                 "the hybrid layer pattern has 3 stages");
}

// Without repeats: "Et|tt|ttL".
std::string text_of(const std::vector<optim::StageLayers>& stages) {
  std::string text;
  for (const optim::StageLayers& stage : stages) {
    if (&stage != &stages.front()) text += '|';
    text.append(stage.embeddings, 'E').append(stage.decoder_layers, 't');
    text.append(stage.mtp_layers, 'm').append(stage.losses, 'L');
  }
  return text;
}

BOOST_AUTO_TEST_CASE(layout_texts_unroll_as_megatron_unrolls_them) {
  const std::pair<std::string, std::string> rows[] = {
      {"EL", "EL"},
      {"Ettt|(tt|)*3,m|L", "Ettt|tt|tt|tt|m|L"},
      {"E(tt|t)*2,L", "Ett|ttt|tL"},
      {"E(|tt)*2|L", "E|tt|tt|L"},
      {"Et*3|t*0|mL", "Ettt||mL"},
      {"E|*3L", "E|||L"},
  };
  for (const auto& [text, unrolled] : rows) {
    const auto layout = optim::parse_pipeline_layout(text);
    BOOST_TEST(text_of(layout) == unrolled);
    BOOST_TEST((optim::parse_pipeline_layout(unrolled) == layout));
  }
}

BOOST_AUTO_TEST_CASE(layout_texts_that_are_not_valid_are_refused) {
  const std::pair<std::string, std::string> rows[] = {
      {"", "begin with its only embedding"},
      {"tE|L", "begin with its only embedding"},
      {"Et|tLx", "character other than"},
      {"Et(t|tL", "character other than"},
      {"E((t)*2)*2L", "character other than"},
      {"E(t|)*99999999L", "more than 2^20"},
      {"Et*99999999999999999999999L", "character other than"},
      {"Et|EtL", "begin with its only embedding"},
      {"t|EtL", "begin with its only embedding"},
      {"EtL|t", "end with its only loss"},
      {"Em|tL", "behind an MTP layer"},
  };
  for (const auto& [text, words] : rows) {
    BOOST_CHECK_EXCEPTION(optim::parse_pipeline_layout(text), ckpt::Error, [&](const auto& error) {
      return std::string_view(error.what()).find(words) != std::string_view::npos;
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
