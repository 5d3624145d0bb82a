// Tensors of the whole model are joined from parts of ranks; parts that are missing, of another
// shape or not the copies that they should be are told by name.
#include "layouts/parts/tensor_parts.h"

#include <boost/test/unit_test.hpp>

#include "parallel/rank_grid.h"
#include "support/errors.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"

using optim::TensorParts;
using test::contains;
using test::GeneratedState;
using test::ModelShape;
using test::TemporaryFolder;

namespace {

ckpt::TensorEntry part_of(const char* file, ckpt::Extents shape) {
  ckpt::TensorEntry part;
  part.file = file;
  part.key = "/model/w";
  part.dtype = ckpt::DType::BFloat16;
  part.chunks.push_back({ckpt::whole(shape), {}, 0});
  part.shape = std::move(shape);
  return part;
}

TensorParts::Shared shared(optim::Split split) {
  return {optim::TensorSharing{true, std::move(split)}, 2};
}

// A folder of a state, one file of which is of another.
class MixedFolder {
 public:
  MixedFolder(const optim::LayerWiseTargetSpec& spec, const ModelShape& own,
              const ModelShape& other)
      : spec_(spec), own_(random_, own), other_(random_of_other_, other) {}

  optim::FiledState& other() { return other_.state(); }
  // Reading it, with that file of the other state.
  std::optional<ckpt::Error> error_with(const char* file) {
    test::file_state(own_.state(), own_.source(), spec_, folder_ / "own");
    test::file_state(other_.state(), other_.source(), spec_, folder_ / "other");
    require_readable();
    const std::string name = std::string("/iter_0000003/") + file;
    std::filesystem::copy_file(folder_ / ("other" + name), folder_ / ("own" + name),
                               std::filesystem::copy_options::overwrite_existing);
    return test::error_of(
        [&] { optim::read_training_state(optim::open_checkpoint(folder_ / "own")); });
  }

 private:
  void require_readable() const {
    const auto error = test::error_of(
        [&] { optim::read_training_state(optim::open_checkpoint(folder_ / "own")); });
    BOOST_REQUIRE_MESSAGE(!error, (error ? error->what() : ""));
  }

  TemporaryFolder folder_;
  optim::LayerWiseTargetSpec spec_;
  test::Picker random_{1}, random_of_other_{1};
  GeneratedState own_, other_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(tensor_parts)

BOOST_AUTO_TEST_CASE(halves_of_a_gated_unit_come_from_both_ranks_each) {
  const auto first = part_of("a", {4, 3}), second = part_of("b", {4, 3});
  TensorParts parts;
  parts.add("w", 1, second);
  parts.add("w", 0, first);
  const auto whole = parts.join("w", shared(optim::two_halves(0, 8)));
  BOOST_TEST((whole->shape == ckpt::Extents{8, 3}));
  BOOST_TEST(whole->key == "w");
  BOOST_REQUIRE_EQUAL(whole->chunks.size(), 4u);
  const uint64_t rows[] = {0, 4, 2, 6};  // rank 0's gate and up rows, then rank 1's
  for (size_t i = 0; i < 4; ++i) {
    BOOST_TEST(whole->chunks[i].box.offsets[0] == rows[i]);
    BOOST_TEST((whole->chunks[i].box.sizes == ckpt::Extents{2, 3}));
    BOOST_TEST(whole->chunks[i].payload_offset_bytes == (i % 2) * 2 * 3 * 2);
  }
}

BOOST_AUTO_TEST_CASE(a_missing_part_is_named_by_its_rank) {
  const auto part = part_of("a", {4, 3});
  for (const uint32_t present : {0u, 1u}) {
    TensorParts parts;
    parts.add("w", present, part);
    const auto error = test::error_of([&] { parts.join("w", shared(optim::one_section(1, 6))); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(error->where().key == "w");
    const std::string rank = std::to_string(1 - present);
    BOOST_TEST(contains(error->problem(), "rank " + rank + " of 2 is missing"), error->what());
  }
}

BOOST_AUTO_TEST_CASE(a_part_of_another_shape_or_type_is_told_with_both_files) {
  const auto first = part_of("a.pt", {4, 3}), shorter = part_of("b.pt", {3, 3});
  auto other_type = part_of("b.pt", {4, 3});
  other_type.dtype = ckpt::DType::Float16;
  for (const ckpt::TensorEntry* second : {&shorter, &std::as_const(other_type)}) {
    TensorParts parts;
    parts.add("w", 0, first);
    const auto error = test::error_of([&] { parts.add("w", 1, *second); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(error->where().file == "b.pt");
    BOOST_TEST(contains(error->problem(), "a.pt"), error->what());
  }
  TensorParts none;
  BOOST_TEST(none.first("w") == nullptr);
}

BOOST_AUTO_TEST_CASE(rank_files_of_another_model_are_refused_by_the_tensor) {
  MixedFolder folder(test::spec_of(ckpt::Format::Torch, 2), {.layers = 2},
                     {.layers = 2, .ffn = 12});
  const auto error = folder.error_with("mp_rank_01/model_optim_rng.pt");
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(contains(error->what(), "mlp.linear_fc1"), error->what());
}

BOOST_AUTO_TEST_CASE(copies_that_differ_between_tensor_parallel_ranks_are_refused_by_name) {
  const ModelShape shape = {.layers = 2};
  MixedFolder folder(test::spec_of(ckpt::Format::Torch, 2), shape, shape);
  const char* const norms[] = {"decoder.layers.0.input_layernorm.weight",
                               "decoder.layers.1.input_layernorm.weight"};
  test::swap_values(test::param_named(folder.other(), norms[0]).weight,
                    test::param_named(folder.other(), norms[1]).weight);
  const auto error = folder.error_with("mp_rank_01/model_optim_rng.pt");
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(contains(error->problem(), norms[0]), error->what());
  BOOST_TEST(contains(error->what(), "mp_rank_00/model_optim_rng.pt"), error->what());
  BOOST_TEST(contains(error->what(), "mp_rank_01/model_optim_rng.pt"), error->what());
}

BOOST_AUTO_TEST_CASE(a_stale_copy_of_tied_embeddings_on_the_last_stage_is_refused_by_name) {
  const ModelShape shape = {.layers = 2, .is_tied = true, .ffn = 24, .vocabulary_rows = 24};
  MixedFolder folder(test::spec_of(ckpt::Format::Torch, 1, 2), shape, shape);
  test::swap_values(
      test::param_named(folder.other(), "embedding.word_embeddings.weight").weight,
      test::param_named(folder.other(), "decoder.layers.0.mlp.linear_fc1.weight").weight);
  const auto error = folder.error_with("mp_rank_00_001/model_optim_rng.pt");
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(contains(error->what(), "embedding.word_embeddings.weight"), error->what());
  BOOST_TEST(contains(error->what(), "mp_rank_00_001"), error->what());
}

BOOST_AUTO_TEST_CASE(masters_of_a_replicated_parameter_that_differ_are_refused_by_name) {
  const ModelShape shape = {.layers = 2};
  MixedFolder folder(test::spec_of(ckpt::Format::Torch, 2, 1, 2), shape, shape);
  for (const char* const kind : {"0", "1"}) {
    auto& norm = test::param_named(
        folder.other(), "decoder.layers." + std::string(kind) + ".input_layernorm.weight");
    auto& next = test::param_named(
        folder.other(), "decoder.layers." + std::string(kind) + ".pre_mlp_layernorm.weight");
    test::swap_values(norm.master, next.master);
  }
  const auto error = folder.error_with("mp_rank_01/layer_wise_optimizer_1.pt");
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(contains(error->what(), "optimizer.state.fp32_param.decoder.layers."), error->what());
  BOOST_TEST(contains(error->what(), "layernorm.weight"), error->what());
}

BOOST_AUTO_TEST_SUITE_END()
