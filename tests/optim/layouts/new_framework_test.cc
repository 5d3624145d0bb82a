// What another framework takes whose folders are only read: a function that knows them, one that
// reads them, and a line in frameworks.cc. Hashing, verifying, comparing and converting to every
// Megatron filing are there already.
#include <boost/test/unit_test.hpp>
#include <map>

#include <training/convert.h>
#include <training/logical_inventory.h>
#include <training/opened_training.h>

#include "layouts/layouts.h"
#include "model/tensor_names.h"
#include "support/temporary_folder.h"

namespace {

// --- the framework: safetensors of weights, masters and states, by the parameters' names ---

std::filesystem::path golden() {
  return std::filesystem::path(SHARDWISE_GOLDEN_DIR) /
         "do_adam_bf16_torch_dist_fully_reshardable_dp2" / "ckpt";
}

bool is_of_framework(const optim::OpenedTraining& checkpoint) {
  return checkpoint.catalog().format == ckpt::Format::Safetensors;
}

// Its settings lie elsewhere: those of the run that the tensors are of.
std::optional<optim::FiledState> read_framework(const optim::OpenedTraining& checkpoint,
                                                const optim::ReadOptions&) {
  if (!is_of_framework(checkpoint)) return std::nullopt;
  optim::FiledState state = optim::read_training_state(optim::open_checkpoint(golden()));
  const auto found = [&](optim::TensorRef& tensor) {
    tensor =
        std::make_shared<const ckpt::TensorEntry>(*checkpoint.catalog().find_tensor(tensor->key));
  };
  for (optim::TrainedParam& param : state.params) {
    found(param.weight);
    found(param.master);
    for (optim::StateTensor& one : param.states) found(one.value);
  }
  state.extra_states.clear();
  for (optim::ModelEntry& entry : state.model) entry.object.reset();
  state.rank_objects.clear();
  state.rng_states.clear();
  state.common.tree.erase(state.common.tree.root().id(), "rng_state");
  state.filed.container = checkpoint.catalog().format;
  return state;
}

constexpr optim::Framework kTrainer = {"Trainer", is_of_framework, read_framework};

// Its line.
struct WithTrainer {
  WithTrainer() {
    optim::ConvertOptions options;
    options.base.format = ckpt::Format::Safetensors;
    optim::convert(golden(), folder / "trainer", options);
    optim::frameworks().push_back(&kTrainer);
  }
  ~WithTrainer() { optim::frameworks().pop_back(); }
  test::TemporaryFolder folder;
};

std::map<std::string, std::vector<std::byte>> tensors_of(const std::filesystem::path& path) {
  const auto checkpoint = optim::open_checkpoint(path);
  std::map<std::string, std::vector<std::byte>> all;
  for (const optim::TensorRef& tensor : optim::tensors_of(optim::read_training_state(checkpoint))) {
    std::vector<std::byte> bytes(ckpt::count_bytes(*tensor));
    checkpoint.read(*tensor, ckpt::whole(tensor->shape), bytes);
    all.emplace(tensor->key, std::move(bytes));
  }
  return all;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(new_framework, WithTrainer)

BOOST_AUTO_TEST_CASE(its_state_is_read_and_written_as_megatron_files_it) {
  const auto expected = tensors_of(golden());
  BOOST_TEST((tensors_of(folder / "trainer") == expected));
  for (const optim::Filing* const filing : {&optim::kByName, &optim::kBuckets, &optim::kFlatFile}) {
    optim::ConvertOptions options;
    options.base.format = filing->container;
    options.form.filing = filing;
    options.sizes.data_parallel = 3;
    const auto written = folder / std::string(filing->name);
    optim::convert(folder / "trainer", written, options);
    BOOST_TEST((tensors_of(written) == expected), filing->name);
    const auto* const only =
        optim::read_training_state(optim::open_checkpoint(written)).filed.only();
    BOOST_TEST_REQUIRE(only != nullptr);
    BOOST_TEST(only->name == filing->name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
