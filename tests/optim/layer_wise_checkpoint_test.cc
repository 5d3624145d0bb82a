#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/prove_assignment.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <set>

#include <ckpt/error.h>

#include "support/swapped_masters.h"

namespace data = boost::unit_test::data;

namespace {

std::filesystem::path golden_set(const std::string& name) {
  return std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name / "ckpt";
}

optim::FiledState view_of(const std::string& name) {
  return optim::read_training_state(optim::open_checkpoint(golden_set(name)));
}

std::set<std::string> keys_of(const optim::FiledState& state) {
  std::set<std::string> keys;
  for (const optim::TensorRef& tensor : optim::tensors_of(state)) keys.insert(tensor->key);
  return keys;
}

std::vector<std::string> paths_of(const ckpt::Target& target) {
  std::vector<std::string> paths;
  for (const auto& file : target.files) paths.push_back(file.path);
  return paths;
}

const char* const kSamples[] = {"lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2"};

}  // namespace

BOOST_AUTO_TEST_SUITE(layer_wise_checkpoint)

BOOST_AUTO_TEST_CASE(both_formats_have_the_same_canonical_keys_in_the_same_model_order) {
  const auto torch = view_of("lw_muon_bf16_torch_dp2");
  const auto dist = view_of("lw_muon_bf16_torch_dist_dp2");
  BOOST_TEST((keys_of(torch) == keys_of(dist)));
  BOOST_REQUIRE(torch.model.size() == dist.model.size());
  for (size_t i = 0; i < torch.model.size(); ++i) {
    BOOST_TEST(torch.model[i].name == dist.model[i].name);
  }
  BOOST_TEST(torch.params.size() == 29u);
}

BOOST_DATA_TEST_CASE(every_name_is_proven_by_content, data::make(kSamples), sample) {
  const auto checkpoint = optim::open_checkpoint(golden_set(sample));
  BOOST_TEST(optim::prove_assignment(optim::read_training_state(checkpoint), checkpoint).empty());
}

BOOST_AUTO_TEST_CASE(a_master_of_another_parameter_is_refused_with_its_key) {
  const auto checkpoint = optim::open_checkpoint(golden_set("lw_muon_bf16_torch_dp2"));
  auto state = optim::read_training_state(checkpoint);
  test::swap_masters(state);
  try {
    optim::prove_assignment(state, checkpoint);
    BOOST_FAIL("the swap was not found");
  } catch (const ckpt::Error& error) {
    BOOST_TEST((error.code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(error.where().key.starts_with("optimizer.state.fp32_param."));
    BOOST_TEST(error.where().file.find("layer_wise_optimizer_") != std::string::npos);
  }
}

BOOST_DATA_TEST_CASE(processes_prove_each_master_once, data::make({1u, 2u, 3u, 31u}), world_size) {
  const auto checkpoint = optim::open_checkpoint(golden_set("lw_muon_bf16_torch_dp2"));
  const auto state = optim::read_training_state(checkpoint);
  for (size_t wrong = 0; wrong < state.params.size(); ++wrong) {
    auto changed = state;
    optim::TrainedParam& param = changed.params[wrong];
    BOOST_REQUIRE(!param.states.empty());
    ckpt::TensorEntry master = *param.master;
    master.chunks = param.states.front().value->chunks;
    param.master = std::make_shared<const ckpt::TensorEntry>(std::move(master));
    unsigned refused = 0;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      try {
        optim::prove_assignment(changed, checkpoint, {1, {rank, world_size}});
      } catch (const ckpt::Error&) {
        ++refused;
      }
    }
    BOOST_TEST(refused == 1u, param.info.name);
  }
}

BOOST_AUTO_TEST_CASE(a_torch_target_has_one_file_per_rank_and_the_tracker_last) {
  optim::LayerWiseTargetSpec spec;
  spec.sizes.data_parallel = 3;
  const auto target = optim::make_layer_wise_target(view_of("lw_muon_bf16_torch_dist_dp2"), spec);
  const std::vector<std::string> expected = {"iter_0000003/mp_rank_00/layer_wise_optimizer_0.pt",
                                             "iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt",
                                             "iter_0000003/mp_rank_00/layer_wise_optimizer_2.pt",
                                             "iter_0000003/mp_rank_00/model_optim_rng.pt",
                                             "latest_checkpointed_iteration.txt"};
  BOOST_TEST(paths_of(target) == expected, boost::test_tools::per_element());
  BOOST_TEST(target.files.back().bytes == "3");
}

BOOST_AUTO_TEST_CASE(what_marks_a_torch_dist_folder_as_complete_comes_last) {
  optim::LayerWiseTargetSpec spec;
  spec.format = ckpt::Format::TorchDist;
  spec.as_root = false;
  const auto paths =
      paths_of(optim::make_layer_wise_target(view_of("lw_muon_bf16_torch_dp2"), spec));
  const std::vector<std::string> expected = {"__0_0.distcp", "__1_0.distcp", "common.pt",
                                             ".metadata", "metadata.json"};
  BOOST_TEST(paths == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(torch_targets_know_no_other_ownership) {
  optim::LayerWiseTargetSpec spec;
  spec.ownership = optim::OwnershipPolicy::Balanced;
  BOOST_CHECK_EXCEPTION(
      optim::make_layer_wise_target(view_of("lw_muon_bf16_torch_dp2"), spec), ckpt::Error,
      [](const ckpt::Error& error) { return error.code() == ckpt::ErrorCode::Unsupported; });
}

BOOST_AUTO_TEST_CASE(every_tensor_is_written_once_whatever_the_size) {
  const auto state = view_of("lw_muon_bf16_torch_dist_dp2");
  for (const uint32_t size : {1U, 2U, 5U, 31U}) {
    optim::LayerWiseTargetSpec spec;
    spec.sizes.data_parallel = size;
    spec.format = ckpt::Format::TorchDist;
    std::multiset<std::string> written;
    for (const auto& file : optim::make_layer_wise_target(state, spec).files) {
      for (const auto& archive : file.archives) {
        for (const auto& record : archive.records) {
          const auto* source = std::get_if<ckpt::TensorSource>(&record.source);
          if (source != nullptr) written.insert(source->tensor->key);
        }
      }
    }
    const auto keys = keys_of(state);
    BOOST_TEST(written.size() == keys.size());
    for (const std::string& key : keys) BOOST_TEST(written.count(key) == 1u);
  }
}

BOOST_AUTO_TEST_SUITE_END()
