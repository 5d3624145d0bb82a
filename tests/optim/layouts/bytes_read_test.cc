// How much of a source a change of sizes reads, by count: each byte once, where tensor-parallel
// parts are joined, whatever windows cut, and where a vocabulary has padding.
#include <atomic>
#include <boost/test/unit_test.hpp>

#include <training/convert.h>

#include "state/passing_proof.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"
#include "support/watched_by.h"

using test::GeneratedState;
using test::ModelShape;
using test::Picker;
using test::spec_of;
using test::TemporaryFolder;

namespace {

class CountingSource final : public ckpt::PayloadSource {
 public:
  explicit CountingSource(const ckpt::PayloadSource& base) : base_(base) {}

  uint64_t count_bytes() const { return count_bytes_; }
  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    return base_.locate(region);
  }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    count_bytes_ += out.size();
    base_.read_bytes(located, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override { return base_.file_name(file); }

 private:
  const ckpt::PayloadSource& base_;
  mutable std::atomic<uint64_t> count_bytes_ = 0;
};

uint64_t count_bytes(const optim::FiledState& state) {
  uint64_t sum_bytes = 0;
  for (const optim::TensorRef& tensor : optim::tensors_of(state)) {
    sum_bytes += ckpt::count_bytes(*tensor);
  }
  return sum_bytes;
}

ModelShape wide_model() {
  return {.layers = 2, .experts = 4, .is_gated = true, .hidden = 64, .ffn = 128};
}

// Bytes read for one byte of the model and its state.
double read_amplification(ckpt::Format format, uint32_t tensor_before, uint32_t tensor_after) {
  Picker random(7);
  GeneratedState generated(random, wide_model());
  const TemporaryFolder folder;
  const optim::OpenedTraining source = test::file_state(
      generated.state(), generated.source(), spec_of(format, tensor_before, 2), folder / "source");
  const optim::FiledState state = optim::read_training_state(source);
  const CountingSource counting(source);
  ckpt::ExecuteOptions options;
  options.memory_bytes_max = 0;  // the least: many windows
  test::file_state(state, counting, spec_of(format, tensor_after), folder / "made", options);
  return static_cast<double>(counting.count_bytes()) / static_cast<double>(count_bytes(state));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bytes_read)

BOOST_AUTO_TEST_CASE(joining_tensor_parallel_parts_reads_each_byte_about_once) {
  for (const uint32_t tensor_parallel : {2u, 4u}) {
    BOOST_TEST(read_amplification(ckpt::Format::TorchDist, tensor_parallel, 1) <= 1.2);
  }
}

BOOST_AUTO_TEST_CASE(weights_and_masters_whose_chunks_are_partly_padding_are_proven_as_they_pass) {
  Picker random(8);
  ModelShape shape = wide_model();
  shape.heads = 8;
  shape.vocabulary = 20;  // of 24 rows at one rank, 32 at eight, of which the last two pad
  GeneratedState generated(random, shape);
  const TemporaryFolder folder;
  const optim::OpenedTraining source =
      test::file_state(generated.state(), generated.source(), spec_of(ckpt::Format::TorchDist, 8),
                       folder / "source");
  const optim::FiledState state = optim::read_training_state(source);
  optim::PassingProof proof(state, source);
  ckpt::ExecuteOptions options;
  options.on_read = [&proof](const auto& located, uint64_t offset_bytes, auto bytes) {
    proof.note(located, offset_bytes, bytes);
  };
  test::file_state(state, source, spec_of(ckpt::Format::TorchDist, 1), folder / "made", options);
  size_t in_part = 0;
  for (size_t i = 0; i < state.params.size(); ++i) {
    if (proof.proven(i)) continue;
    ++in_part;
    BOOST_TEST(optim::is_vocabulary(state, state.params[i].info.name));
    BOOST_TEST(proof.proven_box(i, 0).has_value());
    BOOST_TEST(!proof.proven_box(i, state.params[i].weight->chunks.size() - 1).has_value());
  }
  BOOST_TEST(in_part == 2u);  // embedding and output layer
  BOOST_TEST(optim::prove_rest(state, source, {}, &proof).empty());
}

// Of a flat buffer, where ranks end within a parameter.
BOOST_AUTO_TEST_CASE(masters_of_which_two_ranks_have_ranges_are_proven_as_they_pass) {
  const auto source = optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) /
                                             "do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt");
  const TemporaryFolder folder;
  const optim::OpenedTraining shared_by_three =
      test::file_state(optim::read_training_state(source), source,
                       spec_of(ckpt::Format::TorchDist, 1, 1, 3), folder / "source");
  const optim::FiledState state = optim::read_training_state(shared_by_three);
  optim::PassingProof proof(state, shared_by_three);
  optim::LayerWiseTargetSpec spec = spec_of(ckpt::Format::TorchDist, 2, 1, 2);
  spec.form.filing = &optim::kByName;
  test::file_state(state, shared_by_three, spec, folder / "made", test::watched_by(proof));
  size_t shared = 0;
  for (size_t i = 0; i < state.params.size(); ++i) {
    const optim::TrainedParam& param = state.params[i];
    shared += param.master->chunks.size() > param.weight->chunks.size() ? 1 : 0;
    BOOST_TEST(proof.proven(i).has_value(), param.info.name);
  }
  BOOST_TEST(shared >= 1u);
}

BOOST_AUTO_TEST_SUITE_END()
