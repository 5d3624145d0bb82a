// A generated state goes through torch, torch_dist and torch again, each at sizes of its own, and
// keeps every byte: experts, MTP layers, tied embeddings, padded vocabularies, gated units.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>

#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>

#include "grid/rank_files.h"
#include "support/errors.h"
#include "support/generated_state.h"
#include "support/temporary_folder.h"

using test::GeneratedState;
using test::ModelShape;
using test::pick;
using test::Picker;
using test::TemporaryFolder;

namespace {

int case_count() { return std::getenv("SHARDWISE_LONG_TESTS") ? 300 : 30; }

std::string text_of(const optim::RunGrid& grid) {
  const optim::ParallelSizes& s = grid.sizes;
  return "dp" + std::to_string(s.data_parallel) + " cp" + std::to_string(s.context_parallel) +
         " tp" + std::to_string(s.tensor_parallel) + " pp" + std::to_string(s.pipeline_parallel) +
         " vpp" + std::to_string(s.virtual_pipeline_parallel) + " ep" +
         std::to_string(s.expert_parallel) + " etp" + std::to_string(s.expert_tensor_parallel) +
         " " + grid.pipeline.pipeline_model_parallel_layout;
}

// The next sizes that the model fits and the format can store.
optim::SizeChange next_sizes(Picker& random, const optim::TrainingState& state,
                             const ModelShape& shape, ckpt::Format format) {
  while (true) {
    optim::SizeChange change = test::random_sizes(random, shape, 24);
    const uint32_t pp = *change.pipeline_parallel;
    if (pp > 1 && pick(random, 0, 2) == 0) {
      change.pipeline_layout =
          test::random_layout(random, shape, pp * *change.virtual_pipeline_parallel);
    }
    optim::RunGrid grid;
    if (test::error_of([&] { grid = optim::target_grid(state, change); })) continue;
    const bool loses = !optim::loss_in_rank_files(optim::ranks_of(grid), true).empty();
    if (format == ckpt::Format::Torch && loses) continue;
    return change;
  }
}

ckpt::Checkpoint file_as(const optim::TrainingState& state, const ckpt::PayloadSource& source,
                         const optim::LayerWiseTargetSpec& spec,
                         const std::filesystem::path& path) {
  const ckpt::Target target = optim::make_layer_wise_target(state, spec);
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging);
  staging.commit();
  return optim::open_checkpoint(path);
}

// Rows of the vocabulary that have gone through all steps; those behind are zeros.
struct Expected {
  const std::map<std::string, std::string>& values;
  uint64_t kept_rows = 0, rows = 0;
};

std::string expected_bytes(const optim::TrainingState& state, const optim::TrainedParam& param,
                           const ckpt::TensorEntry& tensor, const Expected& expected) {
  std::string bytes = expected.values.at(tensor.key);
  if (!optim::is_vocabulary(state, param.info.name)) return bytes;
  const uint64_t row_bytes = ckpt::count_bytes(tensor) / tensor.shape[0];
  bytes.resize(expected.kept_rows * row_bytes);
  bytes.resize(expected.rows * row_bytes, '\0');
  return bytes;
}

void require_values(const ckpt::Checkpoint& checkpoint, const Expected& expected) {
  const optim::TrainingState state = optim::name_layer_wise(checkpoint);
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

// Through torch, torch_dist and torch.
void require_survives(Picker& random, const ModelShape& shape) {
  GeneratedState generated(random, shape);
  const TemporaryFolder folder;
  Expected expected{generated.values(), shape.vocabulary_rows, shape.vocabulary_rows};
  optim::TrainingState state = generated.state();
  const ckpt::PayloadSource* source = &generated.source();
  std::optional<ckpt::Checkpoint> last;
  std::string way;
  for (const char* step : {"1 torch", "2 torch_dist", "3 torch"}) {
    const bool is_dist = test::contains(step, "dist");
    const ckpt::Format format = is_dist ? ckpt::Format::TorchDist : ckpt::Format::Torch;
    const auto change = next_sizes(random, state, shape, format);
    const optim::RunGrid grid = optim::target_grid(state, change);
    way += std::string(way.empty() ? "" : ", ") + step + " " + text_of(grid);
    expected.rows = optim::target_vocabulary(state, grid, change);
    expected.kept_rows = std::min(expected.kept_rows, expected.rows);
    const auto error = test::error_of([&] {
      auto filed = file_as(state, *source, {.format = format, .sizes = change}, folder / step);
      last.emplace(std::move(filed));
      require_values(*last, expected);
    });
    if (error) BOOST_ERROR(way << ": " << error->what());
    if (error) return;
    state = optim::name_layer_wise(*last);
    BOOST_REQUIRE((state.grid == grid));
    source = &*last;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(any_sizes)

BOOST_AUTO_TEST_CASE(a_state_survives_any_three_sizes_in_both_formats) {
  Picker random(1);
  for (int i = 0; i < case_count(); ++i) {
    ModelShape shape = test::random_shape_of_model(random);
    shape.layers = std::min(shape.layers, 4u);
    shape.dense_layers = std::min(shape.dense_layers, shape.layers - 1);
    BOOST_TEST_CONTEXT("case " << i) { require_survives(random, shape); }
  }
}

BOOST_AUTO_TEST_SUITE_END()
