// What a new state of an optimizer takes, where it has its parameter's shape: nothing. Every layout
// files it and reads it again, with its name and its values.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "support/temporary_folder.h"

namespace {

constexpr const char* kNewState = "slow_average";

// As if the optimizer kept the masters once more, under a name that nothing here knows.
optim::FiledState with_new_state(optim::FiledState state) {
  for (optim::TrainedParam& param : state.params) {
    if (!param.master) continue;
    auto value = std::make_shared<ckpt::TensorEntry>(*param.master);
    value->key = "optimizer.state." + std::string(kNewState) + "." + param.info.name;
    param.states.push_back({kNewState, std::move(value)});
  }
  return state;
}

std::vector<std::byte> bytes_of(const optim::OpenedTraining& checkpoint,
                                const optim::TensorRef& tensor) {
  std::vector<std::byte> bytes(ckpt::count_bytes(*tensor));
  checkpoint.read(*tensor, ckpt::whole(tensor->shape), bytes);
  return bytes;
}

struct FiledIn {
  ckpt::Format container;
  const optim::Release* release;
};
constexpr FiledIn kFiledIn[] = {{ckpt::Format::Torch, &optim::kCore016},
                                {ckpt::Format::TorchDist, &optim::kCore016},
                                {ckpt::Format::TorchDist, &optim::kCore018},
                                {ckpt::Format::TorchDist, &optim::kCore019}};

void file_as(const FiledIn& row, const optim::FiledState& state,
             const optim::OpenedTraining& source, const std::filesystem::path& path) {
  const auto target = optim::make_layer_wise_target(
      state, {.format = row.container, .form = {.release = row.release}});
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging);
  staging.commit();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(new_state)

BOOST_AUTO_TEST_CASE(every_layout_files_and_reads_a_state_that_nothing_knows) {
  const auto source = optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) /
                                             "lw_muon_bf16_torch_dp2" / "ckpt");
  const optim::FiledState state = with_new_state(optim::read_training_state(source));
  for (const FiledIn& row : kFiledIn) {
    BOOST_TEST_CONTEXT(ckpt::name(row.container) << " of " << row.release->title) {
      const test::TemporaryFolder folder;
      file_as(row, state, source, folder / "filed");
      const auto filed = optim::open_checkpoint(folder / "filed");
      const optim::FiledState read = optim::read_training_state(filed);
      BOOST_TEST_REQUIRE(read.params.size() == state.params.size());
      size_t count = 0;
      for (const optim::TrainedParam& param : read.params) {
        const auto found = std::ranges::find(param.states, kNewState, &optim::StateTensor::name);
        BOOST_TEST_REQUIRE((found != param.states.end()), param.info.name);
        BOOST_TEST((bytes_of(filed, found->value) == bytes_of(filed, param.master)),
                   param.info.name);
        ++count;
      }
      BOOST_TEST(count == 29u);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
