// Masters are proven while they are copied also where several ranks hold parts of them.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <training/prove_assignment.h>

#include "state/passing_proof.h"
#include "support/errors.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"
#include "support/watched_by.h"

using optim::PassingProof;
using test::contains;
using test::TemporaryFolder;

namespace {

constexpr test::ModelShape kShape = {.layers = 4, .is_gated = true};

// Of tensor and pipeline parallel ranks, in either format.
struct Ranks {
  explicit Ranks(ckpt::Format format)
      : generated(random, kShape),
        source(test::file_state(generated.state(), generated.source(),
                                test::spec_of(format, 2, 2, 2), folder / "source")),
        state(optim::read_training_state(source)) {}

  TemporaryFolder folder;
  test::Picker random{1};
  test::GeneratedState generated;
  optim::OpenedTraining source;
  optim::FiledState state;
};

struct CutCase {
  ckpt::Extents shape;
  std::vector<ckpt::Box> weights, masters;
};

optim::TrainedParam param_of(const CutCase& cut) {
  const auto tensor_of = [&](const std::vector<ckpt::Box>& boxes) {
    ckpt::TensorEntry tensor;
    tensor.shape = cut.shape;
    for (const ckpt::Box& box : boxes) tensor.chunks.push_back({box, {}, 0});
    return std::make_shared<const ckpt::TensorEntry>(std::move(tensor));
  };
  optim::TrainedParam param;
  param.weight = tensor_of(cut.weights);
  param.master = tensor_of(cut.masters);
  return param;
}

std::vector<uint64_t> firsts_of(const std::vector<optim::RunOfBox>& runs) {
  std::vector<uint64_t> firsts;
  for (const optim::RunOfBox& run : runs) firsts.push_back(run.first);
  return firsts;
}

constexpr ckpt::Format kFormats[] = {ckpt::Format::Torch, ckpt::Format::TorchDist};

}  // namespace

BOOST_AUTO_TEST_SUITE(proof_of_ranks)

BOOST_AUTO_TEST_CASE(each_chunk_of_a_weight_is_compared_with_the_same_of_its_master) {
  for (const ckpt::Format format : kFormats) {
    const Ranks ranks(format);
    size_t of_several = 0;
    for (const optim::TrainedParam& param : ranks.state.params) {
      const auto boxes = optim::compared_boxes(param);
      BOOST_REQUIRE_MESSAGE(boxes, param.info.name);
      uint64_t elements = 0;
      for (const optim::ComparedBox& compared : *boxes) {
        BOOST_TEST_REQUIRE(compared.weights.size() == 1u, param.info.name);
        BOOST_TEST_REQUIRE(compared.masters.size() == 1u, param.info.name);
        BOOST_TEST((compared.weights[0].chunk->box == compared.masters[0].chunk->box));
        elements += ckpt::element_count(compared.box.sizes);
      }
      BOOST_TEST(elements == ckpt::element_count(param.weight->shape), param.info.name);
      of_several += boxes->size() > 1 ? 1 : 0;
    }
    BOOST_TEST(of_several > 10u);
  }
}

BOOST_AUTO_TEST_CASE(chunks_that_are_cut_otherwise_are_compared_as_the_box_they_make_up) {
  // Rows of a gated weight, of which two ranks have ranges; columns of two ranks, whose parts two
  // others share; in both, what is cut alike stays by itself.
  const CutCase rows = {
      {6, 4},
      {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}, {{4, 0}, {2, 4}}},
      {{{0, 0}, {1, 4}}, {{1, 0}, {1, 3}}, {{1, 3}, {1, 1}}, {{2, 0}, {2, 4}}, {{4, 0}, {2, 4}}}};
  const CutCase columns = {{4, 4},
                           {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}},
                           {{{0, 0}, {4, 2}}, {{0, 2}, {1, 2}}, {{1, 2}, {3, 2}}}};
  const auto of_rows = *optim::compared_boxes(param_of(rows));
  BOOST_TEST_REQUIRE(of_rows.size() == 3u);
  BOOST_TEST((of_rows[0].box == ckpt::Box{{0, 0}, {2, 4}}));
  BOOST_TEST(firsts_of(of_rows[0].masters) == (std::vector<uint64_t>{0, 4, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(of_rows[2].masters.size() == 1u);
  const auto of_columns = *optim::compared_boxes(param_of(columns));
  BOOST_TEST_REQUIRE(of_columns.size() == 2u);
  BOOST_TEST((of_columns[1].box == ckpt::Box{{0, 2}, {4, 2}}));
  BOOST_TEST(firsts_of(of_columns[1].masters) == (std::vector<uint64_t>{0, 2}),
             boost::test_tools::per_element());
  const CutCase across = {{4, 4}, rows.weights, columns.weights};
  BOOST_TEST(!optim::compared_boxes(param_of(across)));
}

BOOST_AUTO_TEST_CASE(columns_that_are_cut_in_different_places_are_not_compared) {
  const auto cut_at = [](uint64_t column) {
    return std::vector<ckpt::Box>{{{0, column}, {2, 8 - column}}, {{0, 0}, {2, column}}};
  };
  std::vector<ckpt::Box> overlapping = cut_at(4);
  overlapping[0].offsets = {0, 2};
  BOOST_TEST(optim::compared_boxes(param_of({{2, 8}, cut_at(4), cut_at(4)})).has_value());
  BOOST_TEST(!optim::compared_boxes(param_of({{2, 8}, cut_at(4), cut_at(3)})));
  BOOST_TEST(!optim::compared_boxes(param_of({{2, 8}, cut_at(4), overlapping})));
}

BOOST_AUTO_TEST_CASE(chunks_that_overlap_or_leave_a_gap_are_not_compared) {
  const std::vector<ckpt::Box> halves = {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}};
  for (const std::vector<ckpt::Box>& wrong : std::vector<std::vector<ckpt::Box>>{
           {{{0, 0}, {3, 4}}, {{2, 0}, {2, 4}}}, {{{0, 0}, {1, 4}}, {{2, 0}, {2, 4}}}, {}}) {
    BOOST_TEST(!optim::compared_boxes(param_of({{4, 4}, halves, wrong})));
    BOOST_TEST(!optim::compared_boxes(param_of({{4, 4}, wrong, halves})));
  }
}

BOOST_AUTO_TEST_CASE(parts_of_ranks_are_proven_while_they_go_to_other_sizes) {
  for (const ckpt::Format format : kFormats) {
    for (const uint32_t tensor : {1u, 4u}) {
      const Ranks ranks(format);
      PassingProof proof(ranks.state, ranks.source);
      test::file_state(ranks.state, ranks.source, test::spec_of(format, tensor, 1, 3),
                       ranks.folder / "out", test::watched_by(proof, 4));
      for (size_t i = 0; i < ranks.state.params.size(); ++i) {
        BOOST_TEST(proof.proven(i).has_value(), ranks.state.params[i].info.name);
      }
      BOOST_TEST(optim::prove_rest(ranks.state, ranks.source, {}, &proof).empty());
    }
  }
}

// As a wrong change of pipeline stages leaves them.
BOOST_AUTO_TEST_CASE(masters_of_swapped_layers_stop_the_copying_by_name) {
  const std::pair<const char*, const char*> swaps[] = {
      {"decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.3.mlp.linear_fc1.weight"},
      {"decoder.layers.1.mlp.linear_fc2.weight", "decoder.layers.2.mlp.linear_fc2.weight"},
      {"decoder.layers.0.input_layernorm.weight", "decoder.layers.2.input_layernorm.weight"}};
  for (const ckpt::Format format : kFormats) {
    for (const auto& [one, other] : swaps) {
      Ranks ranks(format);
      test::swap_values(test::param_named(ranks.state, one).master,
                        test::param_named(ranks.state, other).master);
      PassingProof proof(ranks.state, ranks.source);
      const auto stopped = test::error_of([&] {
        test::file_state(ranks.state, ranks.source, test::spec_of(format, 1), ranks.folder / "out",
                         test::watched_by(proof, 1));
      });
      BOOST_REQUIRE_MESSAGE(stopped, one);
      BOOST_TEST((stopped->code() == ckpt::ErrorCode::Corrupt));
      BOOST_TEST(contains(stopped->problem(), "does not round to the model's weight"));
      const std::string& key = stopped->where().key;
      BOOST_TEST((contains(key, one) || contains(key, other)), key);
      const auto named =
          test::error_of([&] { optim::prove_assignment(ranks.state, ranks.source); });
      BOOST_REQUIRE(named);
      BOOST_TEST(contains(named->where().key, one), named->what());
    }
  }
}

// One half of one rank's part.
BOOST_AUTO_TEST_CASE(a_wrong_chunk_of_one_rank_is_found) {
  for (const ckpt::Format format : kFormats) {
    Ranks ranks(format);
    optim::TrainedParam& param =
        test::param_named(ranks.state, "decoder.layers.2.mlp.linear_fc1.weight");
    ckpt::TensorEntry master = *param.master;
    BOOST_REQUIRE_GE(master.chunks.size(), 4u);
    std::swap(master.chunks[1].box, master.chunks[2].box);
    param.master = std::make_shared<const ckpt::TensorEntry>(std::move(master));
    PassingProof proof(ranks.state, ranks.source);
    const auto stopped = test::error_of([&] {
      test::file_state(ranks.state, ranks.source, test::spec_of(format, 1), ranks.folder / "out",
                       test::watched_by(proof, 1));
    });
    BOOST_REQUIRE(stopped);
    BOOST_TEST(contains(stopped->where().key, param.info.name), stopped->what());
  }
}

BOOST_AUTO_TEST_SUITE_END()
