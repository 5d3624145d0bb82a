// A generated state goes through torch, torch_dist and torch again, each at sizes of its own, and
// keeps every byte: experts, MTP layers, tied embeddings, padded vocabularies, gated units.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "grid/rank_files.h"
#include "support/errors.h"
#include "support/filed_state.h"
#include "support/sanitizer.h"
#include "support/temporary_folder.h"

using test::GeneratedState;
using test::ModelShape;
using test::pick;
using test::Picker;
using test::TemporaryFolder;

namespace {

int case_count() {
  if (test::kIsSanitized) return 8;
  return test::is_long() ? 300 : 30;
}

std::string text_of(const optim::RunGrid& grid) {
  const optim::ParallelSizes& s = grid.sizes;
  return "dp" + std::to_string(s.data_parallel) + " cp" + std::to_string(s.context_parallel) +
         " tp" + std::to_string(s.tensor_parallel) + " pp" + std::to_string(s.pipeline_parallel) +
         " vpp" + std::to_string(s.virtual_pipeline_parallel) + " ep" +
         std::to_string(s.expert_parallel) + " etp" + std::to_string(s.expert_tensor_parallel) +
         " " + grid.pipeline.pipeline_model_parallel_layout;
}

// The next sizes that the model fits and the format can store.
optim::SizeChange next_sizes(Picker& random, const optim::FiledState& state,
                             const ModelShape& shape, ckpt::Format format) {
  const bool is_layer_wise = state.filed.is_layer_wise;
  while (true) {
    optim::SizeChange change = test::random_sizes(random, shape, 24);
    // Megatron would give experts an optimizer of their own, which is not written.
    if (!is_layer_wise && *change.expert_parallel > 1) continue;
    const uint32_t pp = *change.pipeline_parallel;
    if (pp > 1 && pick(random, 0, 2) == 0) {
      change.pipeline_layout =
          test::random_layout(random, shape, pp * *change.virtual_pipeline_parallel);
    }
    optim::RunGrid grid;
    if (test::error_of([&] { grid = optim::target_grid(state, change); })) continue;
    const optim::RankFilesOf files{.is_layer_wise = is_layer_wise, .is_before_core_019 = true};
    const bool loses = !optim::loss_in_rank_files(optim::ranks_of(grid), files).empty();
    if (format == ckpt::Format::Torch && loses) continue;
    return change;
  }
}

// Rows of the vocabulary that have gone through all steps; those behind are zeros.
struct Expected {
  const std::map<std::string, std::string>& values;
  uint64_t kept_rows = 0, rows = 0;
};

std::string expected_bytes(const optim::FiledState& state, const optim::TrainedParam& param,
                           const ckpt::TensorEntry& tensor, const Expected& expected) {
  std::string bytes = expected.values.at(tensor.key);
  if (!optim::is_vocabulary(state, param.info.name)) return bytes;
  const uint64_t row_bytes = ckpt::count_bytes(tensor) / tensor.shape[0];
  bytes.resize(expected.kept_rows * row_bytes);
  bytes.resize(expected.rows * row_bytes, '\0');
  return bytes;
}

void require_values(const optim::OpenedTraining& checkpoint, const Expected& expected) {
  const optim::FiledState state = optim::read_training_state(checkpoint);
  size_t seen = 0;
  for (const optim::TrainedParam& param : state.params) {
    std::vector<optim::TensorRef> tensors = {param.weight, param.master};
    for (const optim::StateTensor& one : param.states) tensors.push_back(one.value);
    for (const optim::TensorRef& tensor : tensors) {
      BOOST_REQUIRE_MESSAGE(tensor, param.info.name);
      std::string bytes(ckpt::count_bytes(*tensor), '\0');
      checkpoint.read(*tensor, ckpt::whole(tensor->shape),
                      std::as_writable_bytes(std::span(bytes)));
      BOOST_REQUIRE_MESSAGE(bytes == expected_bytes(state, param, *tensor, expected), tensor->key);
      ++seen;
    }
  }
  BOOST_REQUIRE_EQUAL(seen, expected.values.size());
}

// How the optimizers are filed.
struct Filing {
  bool is_sharded = true;
  optim::FilingChange in_dist = {}, in_torch = {};
};

// Through torch, torch_dist and torch.
void require_survives(Picker& random, const ModelShape& shape, const Filing& filing) {
  GeneratedState generated(random, shape, filing.is_sharded);
  const TemporaryFolder folder;
  Expected expected{generated.values(), shape.vocabulary_rows, shape.vocabulary_rows};
  optim::FiledState state = generated.state();
  const ckpt::PayloadSource* source = &generated.source();
  std::optional<optim::OpenedTraining> last;
  std::string way;
  for (const char* step : {"1 torch", "2 torch_dist", "3 torch"}) {
    const bool is_dist = test::contains(step, "dist");
    const ckpt::Format format = is_dist ? ckpt::Format::TorchDist : ckpt::Format::Torch;
    const auto change = next_sizes(random, state, shape, format);
    optim::LayerWiseTargetSpec spec;
    spec.format = format;
    spec.sizes = change;
    spec.form = is_dist ? filing.in_dist : filing.in_torch;
    const optim::RunGrid grid = optim::target_grid(state, change);
    way += std::string(way.empty() ? "" : ", ") + step + " " + text_of(grid);
    expected.rows = optim::target_vocabulary(state, grid, change);
    expected.kept_rows = std::min(expected.kept_rows, expected.rows);
    const auto error = test::error_of([&] {
      auto filed = test::file_state(state, *source, spec, folder / step);
      last.emplace(std::move(filed));
      require_values(*last, expected);
    });
    if (error) BOOST_ERROR(way << ": " << error->what());
    if (error) return;
    state = optim::read_training_state(*last);
    BOOST_REQUIRE((state.grid == grid));
    source = &*last;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(any_sizes)

void require_random_ones_survive(uint64_t seed, int count, const Filing& filing) {
  Picker random(seed);
  for (int i = 0; i < count; ++i) {
    ModelShape shape = test::random_shape_of_model(random);
    shape.layers = std::min(shape.layers, 4u);
    shape.dense_layers = std::min(shape.dense_layers, shape.layers - 1);
    BOOST_TEST_CONTEXT("case " << i) { require_survives(random, shape, filing); }
  }
}

BOOST_AUTO_TEST_CASE(a_state_survives_any_three_sizes_in_both_formats) {
  require_random_ones_survive(1, case_count(), {});
}

BOOST_AUTO_TEST_CASE(a_state_survives_any_sizes_as_august_2026_files_it) {
  require_random_ones_survive(2, case_count() / 3, {true, {.release = &optim::kCore019}});
}

BOOST_AUTO_TEST_CASE(a_state_of_optimizers_that_are_not_sharded_survives_any_sizes) {
  require_random_ones_survive(3, case_count() / 3, {.is_sharded = false});
}

BOOST_AUTO_TEST_CASE(a_state_of_a_distributed_optimizer_survives_any_sizes_in_flat_buffers) {
  const auto buckets = [](uint64_t element_count) {
    return optim::BucketChange{optim::BucketChange::Size::Given, element_count, false};
  };
  const Filing filing = {false,
                         {.filing = &optim::kBuckets, .buckets = buckets(700)},
                         {.filing = &optim::kFlatFile, .buckets = buckets(1100)}};
  require_random_ones_survive(4, case_count() / 3, filing);
}

BOOST_AUTO_TEST_CASE(a_state_of_a_distributed_optimizer_survives_any_sizes_by_names) {
  const Filing filing = {false, {.filing = &optim::kByName}, {.filing = &optim::kFlatFile}};
  require_random_ones_survive(5, case_count() / 3, filing);
}

// Layers of Mamba, attention, GatedDeltaNet, MLPs and experts, whose projections share a matrix.
void require_hybrids_survive(uint64_t seed, int count, const Filing& filing) {
  Picker random(seed);
  for (int i = 0; i < count; ++i) {
    ModelShape shape = test::random_shape_of_model(random);
    shape.layers = pick(random, 4, 6);
    shape.dense_layers = shape.mtp_layers = 0;
    shape.is_hybrid = shape.is_of_engine = true;
    shape.has_biases = false;
    BOOST_TEST_CONTEXT("case " << i) { require_survives(random, shape, filing); }
  }
}

BOOST_AUTO_TEST_CASE(hybrid_models_survive_any_sizes_in_every_filing) {
  const auto buckets = [](uint64_t element_count) {
    return optim::BucketChange{optim::BucketChange::Size::Given, element_count, false};
  };
  const Filing filings[] = {{},
                            {true, {.release = &optim::kCore019}},
                            {.is_sharded = false},
                            {false,
                             {.filing = &optim::kBuckets, .buckets = buckets(700)},
                             {.filing = &optim::kFlatFile, .buckets = buckets(1100)}},
                            {false, {.filing = &optim::kByName}, {.filing = &optim::kFlatFile}}};
  uint64_t seed = 6;
  for (const Filing& filing : filings) require_hybrids_survive(seed++, case_count() / 5, filing);
}

BOOST_AUTO_TEST_SUITE_END()
