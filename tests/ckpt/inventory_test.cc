#include <ckpt/inventory.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/convert.h>
#include <ckpt/hash.h>

#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

using ckpt::Checkpoint;
using ckpt::Inventory;

namespace {

const ckpt::TensorEntry* find_tensor(const Inventory& inventory, const std::string& key) {
  const auto found = std::find_if(inventory.tensors.begin(), inventory.tensors.end(),
                                  [&](const auto& tensor) { return tensor.key == key; });
  return found == inventory.tensors.end() ? nullptr : &*found;
}

const ckpt::ObjectTree* find_object(const Inventory& inventory, const std::string& key) {
  const auto found = std::find_if(inventory.objects.begin(), inventory.objects.end(),
                                  [&](const auto& object) { return object.key == key; });
  return found == inventory.objects.end() ? nullptr : &*found;
}

std::string plain_digest(const Checkpoint& checkpoint) {
  return hex(hash(plain_inventory(checkpoint), checkpoint).digest);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(inventory)

BOOST_AUTO_TEST_CASE(a_file_is_listed_as_it_is_stored) {
  const Checkpoint checkpoint = test::open_checkpoint(test::golden("torch_save_zip/zip.pt"));
  const Inventory stored = native_inventory(checkpoint);
  BOOST_TEST(stored.tensors.size() == checkpoint.catalog().tensors.size());
  const ckpt::ObjectTree* model = find_object(stored, "/model");
  BOOST_REQUIRE(model != nullptr);
  BOOST_TEST(model->document->tree.value(model->root).item_count() == 9u);
  BOOST_TEST(!model->lists_tensors);  // the file's own list has them
}

BOOST_AUTO_TEST_CASE(a_folder_names_the_file_of_what_only_that_file_tells_apart) {
  const Checkpoint checkpoint =
      test::open_checkpoint(test::golden("lw_muon_bf16_torch_dist_dp2/ckpt"));
  const Inventory stored = native_inventory(checkpoint);
  const ckpt::ObjectTree* rng = find_object(stored, "rng_state/shard_0.0_1.1");
  const ckpt::ObjectTree* common = find_object(stored, "");
  BOOST_REQUIRE((rng != nullptr && common != nullptr));
  BOOST_TEST(rng->file == "");
  BOOST_TEST(rng->lists_tensors);
  BOOST_TEST(common->file == "common.pt");
}

BOOST_AUTO_TEST_CASE(plain_names_enter_mappings_and_lists_as_pytorch_flattens_them) {
  const Checkpoint checkpoint = test::open_checkpoint(test::golden("torch_save_zip/zip.pt"));
  const Inventory plain = plain_inventory(checkpoint);
  BOOST_TEST(find_tensor(plain, "/model/emb.weight") != nullptr);
  BOOST_TEST(find_tensor(plain, "/optimizer/state/0/exp_avg") != nullptr);
  BOOST_TEST(find_object(plain, "/optimizer/param_groups/0/lr") != nullptr);
  BOOST_TEST(find_object(plain, "/optimizer/param_groups/0/betas") != nullptr);  // a tuple: whole
  BOOST_TEST(find_object(plain, "/optimizer") == nullptr);
}

BOOST_AUTO_TEST_CASE(a_state_dict_keeps_its_digest_in_dcp_and_back) {
  for (const char* name : {"zip.pt", "zip_nocrc.pt"}) {
    const test::TemporaryFolder folder;
    const auto source = test::golden("torch_save_zip") / name;
    ckpt::ConvertOptions options;
    options.format = ckpt::Format::TorchDist;
    ckpt::convert(source, folder.path() / "dcp", options);
    options.format = ckpt::Format::Torch;
    ckpt::convert(folder.path() / "dcp", folder.path() / "back.pt", options);
    const std::string expected = plain_digest(test::open_checkpoint(source));
    BOOST_TEST(plain_digest(test::open_checkpoint(folder.path() / "dcp")) == expected);
    BOOST_TEST(plain_digest(test::open_checkpoint(folder.path() / "back.pt")) == expected);
  }
}

BOOST_AUTO_TEST_CASE(places_become_the_names_of_flat_formats) {
  const Checkpoint checkpoint = Checkpoint::open(test::golden("torch_save_zip/zip.pt"));
  Inventory plain = plain_inventory(checkpoint);
  BOOST_TEST(names_places(plain));
  BOOST_TEST(join_places(plain));
  BOOST_TEST(!names_places(plain));
  BOOST_TEST(find_tensor(plain, "model.emb.weight") != nullptr);
  BOOST_TEST(find_tensor(plain, "optimizer.state.0.exp_avg") != nullptr);
  BOOST_TEST(find_object(plain, "optimizer.param_groups.0.betas") != nullptr);
}

BOOST_AUTO_TEST_CASE(an_escaped_step_is_a_name_as_it_was) {
  Inventory inventory;
  inventory.tensors.emplace_back().key = "/a~1b/~01/c.d/";
  BOOST_TEST(join_places(inventory));
  BOOST_TEST(inventory.tensors[0].key == "a/b.~1.c.d.");
}

BOOST_AUTO_TEST_CASE(places_stay_where_names_do_not_tell_them_apart) {
  const std::vector<std::vector<std::string>> lists = {{"/a/b", "/a.b"}, {"/1", "/1"}, {""}, {"/"},
                                                       {"/~1a", "/b"},   {"/b", "/"}};
  for (const auto& places : lists) {
    Inventory inventory;
    for (const std::string& place : places) inventory.tensors.emplace_back().key = place;
    BOOST_TEST(!join_places(inventory));
    for (size_t i = 0; i < places.size(); ++i) BOOST_TEST(inventory.tensors[i].key == places[i]);
    BOOST_TEST(names_places(inventory));
  }
}

BOOST_AUTO_TEST_CASE(megatron_checkpoints_are_no_plain_state_dicts) {
  for (const char* name : {"lw_muon_bf16_torch_dp2/ckpt", "lw_muon_bf16_torch_dist_dp2/ckpt"}) {
    const Checkpoint checkpoint = test::open_checkpoint(test::golden(name));
    const auto error = test::error_of([&] { plain_inventory(checkpoint); });
    BOOST_REQUIRE(error.has_value());
    BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  }
}

BOOST_AUTO_TEST_SUITE_END()
