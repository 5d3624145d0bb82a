// Masters are proven while they are copied also where several ranks hold parts of them.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <optim/prove_assignment.h>

#include "state/chunk_pairs.h"
#include "state/passing_proof.h"
#include "support/errors.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"

using optim::PassingProof;
using test::contains;
using test::TemporaryFolder;

namespace {

constexpr test::ModelShape kShape = {.layers = 4, .is_gated = true};

ckpt::ExecuteOptions with_proof(PassingProof& proof, unsigned threads) {
  ckpt::ExecuteOptions options;
  options.threads = threads;
  options.memory_bytes_max = 0;
  options.on_read = [&proof](const auto& located, uint64_t offset_bytes, auto bytes) {
    proof.note(located, offset_bytes, bytes);
  };
  return options;
}

// Of tensor and pipeline parallel ranks, in either format.
struct Ranks {
  explicit Ranks(ckpt::Format format)
      : generated(random, kShape),
        source(test::file_state(generated.state(), generated.source(),
                                test::spec_of(format, 2, 2, 2), folder / "source")),
        state(optim::name_layer_wise(source)) {}

  TemporaryFolder folder;
  test::Picker random{1};
  test::GeneratedState generated;
  ckpt::Checkpoint source;
  optim::TrainingState state;
};

constexpr ckpt::Format kFormats[] = {ckpt::Format::Torch, ckpt::Format::TorchDist};

}  // namespace

BOOST_AUTO_TEST_SUITE(proof_of_ranks)

BOOST_AUTO_TEST_CASE(each_chunk_of_a_weight_is_paired_with_the_same_of_its_master) {
  for (const ckpt::Format format : kFormats) {
    const Ranks ranks(format);
    size_t of_several = 0;
    for (const optim::TrainedParam& param : ranks.state.params) {
      const auto pairs = optim::chunk_pairs(param);
      BOOST_REQUIRE_MESSAGE(pairs, param.info.name);
      uint64_t elements = 0;
      for (const optim::ChunkPair& pair : *pairs) {
        BOOST_TEST((pair.weight->box == pair.master->box), param.info.name);
        elements += ckpt::element_count(pair.weight->box.sizes);
      }
      BOOST_TEST(elements == ckpt::element_count(param.weight->shape), param.info.name);
      of_several += pairs->size() > 1 ? 1 : 0;
    }
    BOOST_TEST(of_several > 10u);
  }
}

BOOST_AUTO_TEST_CASE(a_weight_and_a_master_that_are_cut_otherwise_are_no_pairs) {
  const auto cut_at = [](uint64_t column) {
    ckpt::TensorEntry tensor;
    tensor.shape = {2, 8};
    tensor.chunks.push_back({{{0, column}, {2, 8 - column}}, {}, 0});
    tensor.chunks.push_back({{{0, 0}, {2, column}}, {}, 0});
    return std::make_shared<const ckpt::TensorEntry>(std::move(tensor));
  };
  ckpt::TensorEntry overlapping = *cut_at(4);
  overlapping.chunks[0].box.offsets = {0, 2};
  optim::TrainedParam param;
  param.weight = cut_at(4);
  param.master = cut_at(4);
  BOOST_TEST(optim::chunk_pairs(param).has_value());
  param.master = cut_at(3);
  BOOST_TEST(!optim::chunk_pairs(param).has_value());
  param.master = std::make_shared<const ckpt::TensorEntry>(std::move(overlapping));
  BOOST_TEST(!optim::chunk_pairs(param).has_value());
}

BOOST_AUTO_TEST_CASE(parts_of_ranks_are_proven_while_they_go_to_other_sizes) {
  for (const ckpt::Format format : kFormats) {
    for (const uint32_t tensor : {1u, 4u}) {
      const Ranks ranks(format);
      PassingProof proof(ranks.state, ranks.source);
      test::file_state(ranks.state, ranks.source, test::spec_of(format, tensor, 1, 3),
                       ranks.folder / "out", with_proof(proof, 4));
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
                         with_proof(proof, 1));
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
                       with_proof(proof, 1));
    });
    BOOST_REQUIRE(stopped);
    BOOST_TEST(contains(stopped->where().key, param.info.name), stopped->what());
  }
}

BOOST_AUTO_TEST_SUITE_END()
