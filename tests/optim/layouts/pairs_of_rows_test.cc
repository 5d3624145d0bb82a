// Every pair of rows of the table of layouts: what one files, another reads and files again, is the
// same training state. A row that is added is tested with all others from then on.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <training/megatron_folders.h>

#include "grid/target_form.h"
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

ckpt::Checkpoint sample(const char* name) {
  return optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name / "ckpt");
}

void file_as(const optim::LayoutRow& row, uint32_t data_parallel, const ckpt::Checkpoint& source,
             const std::filesystem::path& path) {
  const auto target = optim::make_layer_wise_target(
      optim::name_layer_wise(source), {.format = row.container,
                                       .sizes = {.data_parallel = data_parallel},
                                       .form = {.sharding = row.sharding, .layout = row.era}});
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging);
  staging.commit();
}

std::vector<std::byte> bytes_of(const ckpt::Checkpoint& checkpoint,
                                const ckpt::TensorEntry& tensor) {
  std::vector<std::byte> bytes(ckpt::count_bytes(tensor));
  checkpoint.read(tensor, ckpt::whole(tensor.shape), bytes);
  return bytes;
}

void require_equal(const ckpt::Checkpoint& one, const ckpt::Checkpoint& other,
                   const std::string& context) {
  const auto left = optim::tensors_of(optim::name_layer_wise(one));
  const auto right = optim::tensors_of(optim::name_layer_wise(other));
  BOOST_TEST_REQUIRE(left.size() == right.size(), context);
  const auto found = optim::catalog_of(optim::name_layer_wise(other));
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
bool can_be_filed(const optim::LayoutRow& source, const optim::LayoutRow& row) {
  if (row.sharding == source.sharding) return row.write != nullptr;
  const bool is_dealt = row.sharding == optim::OptimizerSharding::LayerWise &&
                        row.era == optim::StoreLayout::April2026;
  return row.write != nullptr && optim::is_zero1(source.sharding) &&
         (is_dealt || optim::is_zero1(row.sharding));
}

std::vector<optim::LayoutRow> rows_for(const ckpt::Checkpoint& source) {
  std::vector<optim::LayoutRow> rows;
  for (const optim::LayoutRow& row : optim::layouts()) {
    if (can_be_filed(*optim::layout_of(source), row)) rows.push_back(row);
  }
  return rows;
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
        const std::string context = std::string(name) + ", as " + std::string(first.name) +
                                    ", then as " + std::string(second.name);
        BOOST_TEST_CONTEXT(context) {
          const TemporaryFolder folder;
          file_as(first, 3, source, folder / "first");
          const auto between = optim::open_checkpoint(folder / "first");
          BOOST_TEST_REQUIRE(optim::layout_of(between)->name == first.name);
          file_as(second, 2, between, folder / "second");
          const auto result = optim::open_checkpoint(folder / "second");
          BOOST_TEST_REQUIRE(optim::layout_of(result)->name == second.name);
          require_equal(source, result, context);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_have_names_of_their_own_and_are_found_by_what_they_write) {
  for (const auto& row : optim::layouts()) {
    const auto same_name = [&](const auto& each) { return each.name == row.name; };
    BOOST_TEST(std::ranges::count_if(optim::layouts(), same_name) == 1);
    if (row.write == nullptr) continue;
    BOOST_TEST(optim::layout_to_write(row.container, row.era, row.sharding) == &row);
  }
  BOOST_TEST(optim::layout_to_write(ckpt::Format::Torch, optim::StoreLayout::August2026) ==
             nullptr);
}

BOOST_AUTO_TEST_SUITE_END()
