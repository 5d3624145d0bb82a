// A checkpoint at a glance, what a typed key names in it, and names that two checkpoints share.
#include <training/summary.h>

#include <boost/test/unit_test.hpp>
#include <fstream>

#include <ckpt/error.h>
#include <training/names_in_common.h>
#include <training/opened_training.h>
#include <training/subjects.h>
#include <training/value_at.h>

#include "report/logical_names.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;

fs::path golden(const char* name) { return fs::path(SHARDWISE_GOLDEN_DIR) / name; }

optim::OpenedTraining layer_wise(const char* name) {
  return optim::open_checkpoint(golden(name) / "ckpt");
}

std::string keys_of(const std::vector<optim::Subject>& subjects) {
  std::string text;
  for (const auto& subject : subjects) {
    text +=
        (text.empty() ? "" : " ") + (subject.file.empty() ? "" : subject.file + ":") + subject.key;
  }
  return text;
}

std::string found(const optim::OpenedTraining& checkpoint, std::vector<std::string> typed) {
  return keys_of(optim::find_subjects(checkpoint, typed));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(summary)

BOOST_AUTO_TEST_CASE(both_formats_of_a_run_have_the_same_model_and_optimizer) {
  const optim::OpenedTraining ranks = layer_wise("lw_muon_bf16_torch_dp2");
  const optim::OpenedTraining store = layer_wise("lw_muon_bf16_torch_dist_dp2");
  const optim::Summary one = optim::summarize(ranks), other = optim::summarize(store);
  BOOST_TEST(one.variant == "megatron");
  BOOST_TEST(one.sharding == "layer_wise");
  BOOST_TEST(*one.parameter_count == 9152u);
  BOOST_TEST(*one.step == 3);
  BOOST_TEST(one.optimizers.size() == 2u);
  BOOST_TEST((one.status.health == optim::Health::Complete));
  BOOST_TEST(!one.dcp_version.has_value());
  BOOST_TEST(other.dcp_version.has_value());

  BOOST_TEST(*one.parameter_count == *other.parameter_count);
  BOOST_TEST(*one.step == *other.step);
  BOOST_REQUIRE(one.modules.rows.size() == other.modules.rows.size());
  for (size_t i = 0; i < one.modules.rows.size(); ++i) {
    BOOST_TEST(one.modules.rows[i].name == other.modules.rows[i].name);
    BOOST_TEST((one.modules.rows[i].size == other.modules.rows[i].size));
  }
}

BOOST_AUTO_TEST_CASE(a_missing_file_makes_a_checkpoint_incomplete) {
  const test::TemporaryFolder folder;
  fs::copy(golden("lw_muon_bf16_torch_dp2") / "ckpt", folder.path() / "ckpt",
           fs::copy_options::recursive);
  const std::string gone = "mp_rank_00/layer_wise_optimizer_1.pt";
  BOOST_REQUIRE(fs::remove(folder.path() / "ckpt" / "iter_0000003" / gone));
  const optim::OpenedTraining checkpoint = optim::open_checkpoint(folder.path() / "ckpt");
  const optim::Status status = optim::summarize(checkpoint).status;
  BOOST_TEST((status.health == optim::Health::Incomplete));
  BOOST_TEST(name(status.health) == "incomplete");
  BOOST_REQUIRE(status.missing.size() == 1u);
  BOOST_TEST(status.missing[0] == gone);
}

BOOST_AUTO_TEST_CASE(a_typed_key_names_rows_before_values_and_exact_keys_before_globs) {
  const optim::OpenedTraining checkpoint = layer_wise("lw_muon_bf16_torch_dist_dp2");
  BOOST_TEST(found(checkpoint, {"embedding.word_embeddings.weight"}) ==
             "embedding.word_embeddings.weight");
  BOOST_TEST(found(checkpoint, {"/embedding/word_embeddings/weight"}) ==
             "embedding.word_embeddings.weight");
  BOOST_TEST(found(checkpoint, {"common.pt:/args/@lr"}) == "common.pt:/args/@lr");
  BOOST_TEST(found(checkpoint, {"embedding.*weight", "output_layer.weight"}) ==
             "embedding.word_embeddings.weight embedding.position_embeddings.weight "
             "output_layer.weight");
  for (const char* typed : {"embedding.word_embeddings.weigth", "nothing like it"}) {
    const auto error = test::error_of([&] { found(checkpoint, {typed}); });
    BOOST_REQUIRE(error.has_value());
    BOOST_TEST((error->code() == ckpt::ErrorCode::NotFound));
  }
  BOOST_TEST(found(checkpoint, {"output_layer.weight[0:4]"}) == "output_layer.weight");
}

BOOST_AUTO_TEST_CASE(subjects_are_kept_by_selections) {
  const optim::OpenedTraining checkpoint = layer_wise("lw_muon_bf16_torch_dist_dp2");
  auto subjects = optim::find_subjects(checkpoint, {});
  optim::keep_selected(subjects, {{"embedding.*"}, {"*position*"}});
  BOOST_TEST(keys_of(subjects) == "embedding.word_embeddings.weight");
}

BOOST_AUTO_TEST_CASE(pointers_lead_through_items_elements_and_attributes) {
  ckpt::ValueTree tree;
  const auto list = tree.list({tree.integer(5), tree.str("x")});
  const auto inner = tree.dict();
  tree.set_item(inner, tree.str("a/b~"), list);
  const auto root = tree.dict();
  tree.set_item(root, tree.str("top"), inner);
  tree.set_root(root);
  const auto value = optim::value_at(tree.root(), "/top/a~1b~0/0");
  BOOST_REQUIRE(value.has_value());
  BOOST_TEST(value->as_int() == 5);
  BOOST_TEST(!optim::value_at(tree.root(), "/top/a~1b~0/2").has_value());
  BOOST_TEST(!optim::value_at(tree.root(), "top").has_value());
  BOOST_TEST(optim::value_at(tree.root(), "")->id() == root);
  const auto named = optim::values_named(tree.root(), "top.a.b~.1", ckpt::KeyMatch::Spelling);
  BOOST_REQUIRE(named.size() == 1u);
  BOOST_TEST(named[0].pointer == "/top/a~1b~0/1");
}

BOOST_AUTO_TEST_CASE(formats_are_brought_together_by_canonical_names) {
  const optim::OpenedTraining ranks = layer_wise("lw_muon_bf16_torch_dp2");
  const optim::OpenedTraining store = layer_wise("lw_muon_bf16_torch_dist_dp2");
  const auto pair = optim::names_in_common(ranks, store);
  BOOST_TEST(std::string(pair.names) == "canonical");
  BOOST_TEST(pair.warnings.empty());
  BOOST_TEST(pair.a.tensors.size() == pair.b.tensors.size());

  const auto plain = optim::open_checkpoint(golden("torch_save_zip") / "zip.pt");
  BOOST_TEST(std::string(optim::names_in_common(plain, plain).names) == "stored");
  const auto missing = test::error_of([] { optim::open_side("no/such/folder", {}); });
  BOOST_REQUIRE(missing.has_value());
  BOOST_TEST(missing->where().file == "no/such/folder");
}

BOOST_AUTO_TEST_SUITE_END()
