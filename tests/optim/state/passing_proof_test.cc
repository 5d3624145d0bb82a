#include "state/passing_proof.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/error.h>
#include <ckpt/staging.h>
#include <training/convert.h>
#include <training/opened_training.h>
#include <training/prove_assignment.h>

#include "layouts/job/layer_wise_target.h"
#include "state/value_scan.h"
#include "support/errors.h"
#include "support/swapped_masters.h"
#include "support/temporary_folder.h"
#include "support/watched_by.h"

using optim::PassingProof;
using test::TemporaryFolder;

namespace {

optim::OpenedTraining sample() {
  return optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) /
                                "lw_muon_bf16_torch_dp2/ckpt");
}

void write(const ckpt::Target& target, const optim::OpenedTraining& source,
           const std::filesystem::path& path, const ckpt::ExecuteOptions& options = {}) {
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  staging.commit();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(passing_proof)

BOOST_AUTO_TEST_CASE(all_masters_are_proven_while_they_are_copied) {
  const auto source = sample();
  const auto state = optim::read_training_state(source);
  using Layout = std::pair<ckpt::Format, uint32_t>;
  for (const auto& [format, data_parallel] :
       {Layout{ckpt::Format::Torch, 1}, {ckpt::Format::Torch, 5}, {ckpt::Format::TorchDist, 2}}) {
    for (const unsigned threads : {1u, 4u}) {
      const TemporaryFolder folder;
      PassingProof proof(state, source);
      optim::LayerWiseTargetSpec spec;
      spec.format = format;
      spec.sizes.data_parallel = data_parallel;
      write(optim::make_layer_wise_target(state, spec), source, folder / "out",
            test::watched_by(proof, threads));
      for (size_t i = 0; i < state.params.size(); ++i) {
        const auto& weight = *state.params[i].weight;
        std::vector<std::byte> bytes(ckpt::count_bytes(weight));
        source.read(weight, ckpt::whole(weight.shape), bytes);
        BOOST_TEST_REQUIRE(proof.proven(i).has_value(), state.params[i].info.name);
        BOOST_TEST(*proof.proven(i) == optim::sum_of_weights(bytes, 0));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_may_be_cut_anywhere_and_what_has_not_passed_is_not_proven) {
  const auto source = sample();
  const auto state = optim::read_training_state(source);
  PassingProof proof(state, source);
  for (size_t i = 0; i < state.params.size(); ++i) {
    const auto& weight = *state.params[i].weight;
    const auto& master = *state.params[i].master;
    for (const auto* tensor : {&weight, &master}) {
      std::vector<std::byte> bytes(ckpt::count_bytes(*tensor));
      source.read(*tensor, ckpt::whole(tensor->shape), bytes);
      // Cuts in an element, in a pair, twice in a pair, between pairs, and at both ends.
      const size_t size = bytes.size();
      std::vector<size_t> cuts = {0, 5, 32, 34, 35, size / 2 + 3, size - 1, size};
      for (size_t& cut : cuts) cut = std::min(cut, size);
      std::ranges::sort(cuts);
      const size_t missing = i % 3 != 0 ? cuts.size() : i % 2 == 0 ? 1 : cuts.size() - 1;
      for (size_t c = cuts.size(); --c > 0;) {  // a part that comes later may lie before
        if (c == missing) continue;
        proof.note(tensor->chunks[0].region, cuts[c - 1],
                   std::span(bytes).subspan(cuts[c - 1], cuts[c] - cuts[c - 1]));
      }
    }
    BOOST_TEST(proof.proven(i).has_value() == (i % 3 != 0));
  }
  BOOST_TEST(optim::prove_rest(state, source, {}, &proof).empty());
}

// As of a flat buffer, or of all layers of a key: the last parameter comes first, and the second
// has the bytes of the third.
BOOST_AUTO_TEST_CASE(chunks_of_one_storage_are_found_wherever_they_lie) {
  const auto source = sample();
  auto state = optim::read_training_state(source);
  state.params[1] = state.params[2];
  const auto bytes_of = [&](const ckpt::TensorEntry& tensor) {
    std::vector<std::byte> bytes(ckpt::count_bytes(tensor));
    source.read(tensor, ckpt::whole(tensor.shape), bytes);
    return bytes;
  };
  std::vector<std::byte> storage;
  std::vector<ckpt::TensorEntry> weights;
  for (const auto& param : state.params) weights.push_back(*param.weight);
  for (size_t i = weights.size(); i-- > 0;) {
    const std::vector<std::byte> bytes = bytes_of(weights[i]);
    if (i != 1) storage.insert(storage.end(), bytes.begin(), bytes.end());
    weights[i].chunks[0].payload_offset_bytes = storage.size() - bytes.size();
  }
  const ckpt::StorageRegion region{.file = 9, .bytes = {100, storage.size()}};
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].chunks[0].region = region;
    state.params[i].weight = std::make_shared<ckpt::TensorEntry>(weights[i]);
  }
  PassingProof proof(state, source);
  constexpr size_t kPartBytes = 777;
  for (size_t at = 0; at < storage.size(); at += kPartBytes) {
    const size_t count = std::min(kPartBytes, storage.size() - at);
    proof.note(region, at, std::span(storage).subspan(at, count));
  }
  for (size_t i = 0; i < state.params.size(); ++i) {
    BOOST_TEST(!proof.proven(i).has_value());
    if (i == 1) continue;  // which has the master of the next
    const auto& master = *state.params[i].master;
    proof.note(master.chunks[0].region, 0, bytes_of(master));
  }
  for (size_t i = 0; i < state.params.size(); ++i) BOOST_TEST(proof.proven(i).has_value());
}

// As biases of 10^4 experts are before the first step: a list of all others for each was 10^8
// names.
BOOST_AUTO_TEST_CASE(of_many_parameters_that_are_alike_the_first_eight_are_named) {
  const auto source = sample();
  auto state = optim::read_training_state(source);
  state.params.assign(12, state.params[0]);
  for (size_t i = 0; i < state.params.size(); ++i) state.params[i].info.name = std::to_string(i);
  const auto ambiguous = optim::prove_assignment(state, source);
  BOOST_TEST_REQUIRE(ambiguous.size() == 12u);
  for (const optim::AmbiguousParam& param : ambiguous) {
    BOOST_TEST(param.also_fits_count == 11u);
    BOOST_TEST(param.also_fits.size() == 8u);
    BOOST_TEST(std::ranges::count(param.also_fits, param.name) == 0);
  }
  const std::vector<std::string> first = {"1", "2", "3", "4", "5", "6", "7", "8"};
  BOOST_TEST(ambiguous[0].also_fits == first, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_wrong_master_stops_the_copying_and_the_first_one_is_told) {
  const auto source = sample();
  auto state = optim::read_training_state(source);
  test::swap_masters(state);
  const auto expected = test::error_of([&] { optim::prove_assignment(state, source); });
  BOOST_REQUIRE(expected);
  for (const unsigned threads : {1u, 4u}) {
    const TemporaryFolder folder;
    PassingProof proof(state, source);
    const auto target = optim::make_layer_wise_target(state, {});
    const auto stopped = test::error_of(
        [&] { write(target, source, folder / "out", test::watched_by(proof, threads)); });
    BOOST_REQUIRE(stopped);
    BOOST_TEST(stopped->where().key.starts_with("optimizer.state.fp32_param."));
    BOOST_TEST(stopped->problem().starts_with("the master does not round to the model's weight"));
    const auto named = test::error_of([&] { optim::prove_rest(state, source, {}, &proof); });
    BOOST_REQUIRE(named);
    BOOST_TEST(std::string(named->what()) == expected->what());
  }
}

BOOST_AUTO_TEST_CASE(a_checkpoint_with_wrong_masters_is_not_resharded) {
  const TemporaryFolder folder;
  const auto source = sample();
  auto state = optim::read_training_state(source);
  test::swap_masters(state);
  write(optim::make_layer_wise_target(state, {}), source, folder / "wrong");
  for (const unsigned threads : {1u, 4u}) {
    for (const uint32_t world_size : {1u, 2u}) {
      optim::ReshardOptions options;
      options.sizes.data_parallel = 4;
      options.base.execute.threads = threads;
      unsigned refused = 0;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        options.base.share = {rank, world_size};
        const auto error =
            test::error_of([&] { optim::reshard(folder / "wrong", folder / "out", options); });
        if (!error) continue;
        ++refused;
        BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
        BOOST_TEST(error->where().key.starts_with("optimizer.state.fp32_param."));
        BOOST_TEST(test::contains(error->problem(), "does not round to the model's weight"));
      }
      BOOST_TEST(refused >= 1u);
      BOOST_TEST(!std::filesystem::exists(folder / "out"));
      ckpt::Staging::clean(folder / "out");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
