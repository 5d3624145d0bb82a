// Every pair of filings, in each container and as each release does it: what one files, another
// reads and files again, is the same training state. One that is added is tested with all others.
#include <boost/test/unit_test.hpp>
#include <set>

#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <training/opened_training.h>

#include "layouts/layouts.h"
#include "support/sanitizer.h"
#include "support/temporary_folder.h"

using test::TemporaryFolder;

namespace {

constexpr const char* kSamples[] = {"lw_muon_bf16_torch_dp2",
                                    "lw_muon_bf16_torch_dist_dp2",
                                    "lw_soap_bf16_torch_dp2",
                                    "do_adam_bf16_torch_dp2",
                                    "do_adam_bf16_torch_dist_dp_reshardable_dp2",
                                    "do_adam_bf16_torch_dist_fully_reshardable_dp2",
                                    "v012_do_adam_fully_sharded_dp2"};

optim::OpenedTraining sample(const char* name) {
  return optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name / "ckpt");
}

// A filing in a container, as a release does it.
struct Row {
  ckpt::Format container;
  const optim::Filing* filing;
  const optim::Release* release;
  std::string name() const {
    return std::string(filing->name) + ", " + std::string(ckpt::name(container)) + ", " +
           std::string(release->title);
  }
};

// All that are written. `torch` is one of April; without LayerWise ones 0.18 files as April does.
std::vector<Row> rows() {
  std::vector<Row> rows;
  for (const auto container : {ckpt::Format::Torch, ckpt::Format::TorchDist}) {
    for (const optim::Filing* const filing : optim::filings()) {
      for (const optim::Release* const release : optim::releases()) {
        const bool is_april = release == &optim::kCore016;
        const bool is_one = container == ckpt::Format::Torch ||
                            (release == &optim::kCore018 && filing != &optim::kDealt);
        if (filing->fits(container) && (is_april || !is_one)) {
          rows.push_back({container, filing, release});
        }
      }
    }
  }
  return rows;
}

void require_filed_as(const Row& row, const optim::OpenedTraining& checkpoint) {
  const auto stated = optim::stated_filing(checkpoint);
  BOOST_TEST_REQUIRE(stated.has_value());
  BOOST_TEST((checkpoint.catalog().format == row.container));
  BOOST_TEST(stated->filing->name == row.filing->name);
  BOOST_TEST(stated->release->name == row.release->name);
}

void file_as(const Row& row, uint32_t data_parallel, const optim::OpenedTraining& source,
             const std::filesystem::path& path) {
  const auto target = optim::make_layer_wise_target(
      optim::read_training_state(source), {.format = row.container,
                                           .sizes = {.data_parallel = data_parallel},
                                           .form = {.filing = row.filing, .release = row.release}});
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging);
  staging.commit();
}

std::vector<std::byte> bytes_of(const optim::OpenedTraining& checkpoint,
                                const ckpt::TensorEntry& tensor) {
  std::vector<std::byte> bytes(ckpt::count_bytes(tensor));
  checkpoint.read(tensor, ckpt::whole(tensor.shape), bytes);
  return bytes;
}

void require_equal(const optim::OpenedTraining& one, const optim::OpenedTraining& other,
                   const std::string& context) {
  const auto left = optim::tensors_of(optim::read_training_state(one));
  const auto right = optim::tensors_of(optim::read_training_state(other));
  BOOST_TEST_REQUIRE(left.size() == right.size(), context);
  const auto found = optim::catalog_of(optim::read_training_state(other));
  for (const auto& tensor : left) {
    const auto* twin = found.find_tensor(tensor->key);
    BOOST_TEST_REQUIRE(twin != nullptr, context << ": " << tensor->key);
    BOOST_TEST((twin->dtype == tensor->dtype), context << ": " << tensor->key);
    BOOST_TEST(twin->shape == tensor->shape, context << ": " << tensor->key);
    BOOST_TEST((bytes_of(one, *tensor) == bytes_of(other, *twin)), context << ": " << tensor->key);
  }
}

// What is sharded by whole parameters, and what is not, have layouts of their own; Adam's state,
// which a DistributedOptimizer keeps by elements, can be dealt by parameters, too.
bool can_be_filed(const optim::Filing& source, const Row& row) {
  if (row.filing == &source) return true;
  const bool is_dealt = row.filing == &optim::kDealt && row.release == &optim::kCore016;
  return source.by_elements && (is_dealt || row.filing->by_elements);
}

std::vector<Row> rows_for(const optim::OpenedTraining& source) {
  std::vector<Row> found;
  for (const Row& row : rows()) {
    if (can_be_filed(*optim::stated_filing(source)->filing, row)) found.push_back(row);
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pairs_of_rows)

BOOST_AUTO_TEST_CASE(a_state_survives_any_two_layouts_one_after_the_other) {
  uint64_t pairs = 0;
  for (const char* name : kSamples) {
    const auto source = sample(name);
    for (const auto& first : rows_for(source)) {
      for (const auto& second : rows_for(source)) {
        if (pairs++ % test::sample_step(1, 3) != 0) continue;
        const std::string context =
            std::string(name) + ", as " + first.name() + ", then as " + second.name();
        BOOST_TEST_CONTEXT(context) {
          const TemporaryFolder folder;
          file_as(first, 3, source, folder / "first");
          const auto between = optim::open_checkpoint(folder / "first");
          require_filed_as(first, between);
          file_as(second, 2, between, folder / "second");
          const auto result = optim::open_checkpoint(folder / "second");
          require_filed_as(second, result);
          require_equal(source, result, context);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(filings_and_releases_have_names_of_their_own) {
  std::set<std::string_view> names;
  for (const optim::Filing* const filing : optim::filings()) {
    BOOST_TEST(names.insert(filing->name).second);
  }
  for (const optim::Release* const release : optim::releases()) {
    BOOST_TEST(names.insert(release->name).second);
  }
  BOOST_TEST(rows().size() == 12u);
}

BOOST_AUTO_TEST_CASE(rank_files_are_of_april) {
  for (const char* name : {kSamples[0], kSamples[3]}) {
    const Row row = {ckpt::Format::Torch, &optim::kDealt, &optim::kCore019};
    const TemporaryFolder folder;
    BOOST_CHECK_THROW(file_as(row, 2, sample(name), folder / "made"), ckpt::Error);
  }
}

BOOST_AUTO_TEST_SUITE_END()
