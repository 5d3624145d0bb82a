#include <training/layer_wise_checkpoint.h>
#include <training/logical_inventory.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include <ckpt/hash.h>
#include <training/opened_training.h>

namespace {

std::filesystem::path golden_checkpoint(const std::string& name) {
  return std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name;
}

std::string digest_of(const std::string& name) {
  const optim::OpenedTraining checkpoint = optim::open_checkpoint(golden_checkpoint(name));
  return hex(hash(optim::logical_inventory(checkpoint), checkpoint).digest);
}

std::vector<std::string> object_keys(const ckpt::Inventory& inventory) {
  std::vector<std::string> keys;
  for (const ckpt::ObjectTree& object : inventory.objects) keys.push_back(object.key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(logical_inventory)

// Megatron wrote both from one training state.
BOOST_AUTO_TEST_CASE(twins_in_both_formats_have_one_digest) {
  BOOST_TEST(digest_of("lw_muon_bf16_torch_dp2/ckpt") ==
             digest_of("lw_muon_bf16_torch_dist_dp2/ckpt"));
}

BOOST_AUTO_TEST_CASE(another_run_has_another_digest) {
  BOOST_TEST(digest_of("lw_muon_bf16_torch_dp2/ckpt") != digest_of("lw_muon_bf16_torch_dp4/ckpt"));
}

BOOST_AUTO_TEST_CASE(each_parameter_and_state_is_listed_once_without_a_file) {
  const auto checkpoint = optim::open_checkpoint(golden_checkpoint("lw_muon_bf16_torch_dp2/ckpt"));
  const ckpt::Inventory inventory = optim::logical_inventory(checkpoint);
  std::vector<std::string> keys;
  for (const ckpt::TensorEntry& tensor : inventory.tensors) {
    BOOST_TEST(tensor.file == "");
    keys.push_back(tensor.key);
  }
  std::sort(keys.begin(), keys.end());
  BOOST_TEST((std::adjacent_find(keys.begin(), keys.end()) == keys.end()));
  for (const char* prefix : {"", "optimizer.state.fp32_param.", "optimizer.state.exp_avg."}) {
    const std::string key = std::string(prefix) + "embedding.word_embeddings.weight";
    BOOST_TEST(std::binary_search(keys.begin(), keys.end(), key), key);
  }
}

BOOST_AUTO_TEST_CASE(the_common_state_is_listed_by_its_keys) {
  const auto checkpoint =
      optim::open_checkpoint(golden_checkpoint("lw_muon_bf16_torch_dist_dp2/ckpt"));
  const std::vector<std::string> expected = {"args",
                                             "checkpoint_version",
                                             "iteration",
                                             "num_floating_point_operations_so_far",
                                             "optimizer.0",
                                             "optimizer.1",
                                             "opt_param_scheduler"};
  std::vector<std::string> sorted = expected;
  std::sort(sorted.begin(), sorted.end());
  BOOST_TEST(object_keys(optim::logical_inventory(checkpoint)) == sorted,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(args_lose_what_a_conversion_may_change_and_nothing_else) {
  const auto checkpoint = optim::open_checkpoint(golden_checkpoint("lw_muon_bf16_torch_dp2/ckpt"));
  const auto named = optim::read_training_state(checkpoint);
  const ckpt::Inventory inventory = optim::logical_inventory(named);
  const auto args = std::find_if(inventory.objects.begin(), inventory.objects.end(),
                                 [](const auto& object) { return object.key == "args"; });
  BOOST_REQUIRE((args != inventory.objects.end()));
  const auto fields = args->document->tree.value(args->root).state();
  BOOST_REQUIRE(fields.has_value());
  for (const char* left_out :
       {"save", "load", "ckpt_format", "use_dist_ckpt", "rank", "world_size", "data_parallel_size",
        "tensor_model_parallel_size", "virtual_pipeline_model_parallel_size", "sequence_parallel",
        "padded_vocab_size"}) {
    BOOST_TEST(!fields->find(left_out).has_value(), left_out);
    BOOST_TEST(named.args().find(left_out).has_value(), left_out);
  }
  for (const char* kept :
       {"num_layers", "seed", "vocab_size", "lr", "optimizer", "micro_batch_size"}) {
    BOOST_TEST(fields->find(kept).has_value(), kept);
  }
  BOOST_TEST(fields->item_count() + 31 == named.args().item_count());
}

BOOST_AUTO_TEST_SUITE_END()
