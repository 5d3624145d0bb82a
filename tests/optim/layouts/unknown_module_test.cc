// A model with a module that no rule knows is resharded with a row for it, and refused by its name
// without.
#include <boost/test/unit_test.hpp>

#include "support/errors.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"

using test::contains;
using test::spec_of;
using test::TemporaryFolder;

namespace {

constexpr test::ModelShape kShape = {.layers = 2, .has_own_module = true};
constexpr const char* kOwn = "decoder.layers.0.mlp.own.weight";

std::string rules_text(const char* split) {
  return std::string(R"({"schema_version": 1, "rules": [{"part": "layer", "name": )"
                     R"("mlp.own.weight", "split": ")") +
         split + R"("}]})";
}

class Folder {
 public:
  Folder() : random_(1), generated_(random_, kShape) {
    write(generated_.state(), generated_.source(), spec_of(ckpt::Format::Torch, 1), "one");
    test::write_file(folder_ / "columns.json", rules_text("columns"));
    test::write_file(folder_ / "rows.json", rules_text("rows"));
  }
  void write(const optim::FiledState& state, const ckpt::PayloadSource& source,
             const optim::LayerWiseTargetSpec& spec, const char* name) {
    test::file_state(state, source, spec, folder_ / name);
  }
  optim::OpenedTraining open(const char* name) const {
    return optim::open_checkpoint(folder_ / name);
  }
  optim::ReadOptions with_rules(const char* name = "columns.json") const {
    optim::ReadOptions options;
    options.rules = optim::read_model_rules(folder_ / name);
    return options;
  }
  void require_values(const char* name, const optim::ReadOptions& options) const {
    const auto checkpoint = open(name);
    const auto tensors = optim::tensors_of(optim::read_training_state(checkpoint, options));
    BOOST_TEST(tensors.size() == generated_.values().size());
    for (const optim::TensorRef& tensor : tensors) {
      std::string bytes(ckpt::count_bytes(*tensor), '\0');
      checkpoint.read(*tensor, ckpt::whole(tensor->shape),
                      std::as_writable_bytes(std::span(bytes)));
      BOOST_TEST((bytes == generated_.values().at(tensor->key)), tensor->key);
    }
  }

 private:
  TemporaryFolder folder_;
  test::Picker random_;
  test::GeneratedState generated_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(unknown_module)

BOOST_AUTO_TEST_CASE(more_tensor_parallel_ranks_are_refused_by_the_name_of_the_module) {
  const Folder folder;
  const auto source = folder.open("one");
  const auto state = optim::read_training_state(source);
  const auto error = test::error_of(
      [&] { optim::make_layer_wise_target(state, spec_of(ckpt::Format::Torch, 2)); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(error->where().key == kOwn);
  BOOST_TEST(contains(error->hint(), "--model-rules"));
  BOOST_TEST(!test::error_of(
      [&] { optim::make_layer_wise_target(state, spec_of(ckpt::Format::Torch, 1, 2)); }));
}

BOOST_AUTO_TEST_CASE(a_row_says_how_ranks_share_the_module) {
  Folder folder;
  const auto source = folder.open("one");
  const auto options = folder.with_rules();
  const auto state = optim::read_training_state(source, options);
  folder.write(state, source, spec_of(ckpt::Format::Torch, 2, 2), "torch");
  folder.require_values("torch", options);
  const auto torch = folder.open("torch");
  const auto* part = torch.catalog().find_tensor("/model/" + std::string(kOwn),
                                                 "mp_rank_01_000/model_optim_rng.pt");
  BOOST_REQUIRE(part != nullptr);
  BOOST_TEST((part->shape == ckpt::Extents{8, 4}));
  folder.write(state, source, spec_of(ckpt::Format::TorchDist, 2, 2), "dist");
  folder.require_values("dist", options);
  folder.require_values("dist", {});  // torch_dist says itself how it was shared
}

BOOST_AUTO_TEST_CASE(a_row_in_place_of_a_built_in_one_counts) {
  Folder folder;
  test::TemporaryFolder files;
  test::write_file(files / "rules.json",
                   R"({"schema_version": 1, "rules": [
                     {"part": "layer", "name": "mlp.own.weight"},
                     {"part": "layer", "name": "mlp.linear_fc2.weight", "split": "rows"}]})");
  const auto source = folder.open("one");
  optim::ReadOptions options;
  options.rules = optim::read_model_rules(files / "rules.json");
  const auto state = optim::read_training_state(source, options);
  for (const optim::TrainedParam& param : state.params) {
    const bool is_replaced = param.info.name.ends_with("mlp.linear_fc2.weight");
    const bool is_own = param.info.name.ends_with("mlp.own.weight");
    if (is_replaced) BOOST_TEST(param.sharing.split->dim == 0u);
    if (is_own) BOOST_TEST((param.sharing.is_known && !param.sharing.is_split()));
  }
}

BOOST_AUTO_TEST_CASE(torch_needs_a_row_for_the_order_of_a_module_of_torch_dist) {
  Folder folder;
  const auto source = folder.open("one");
  folder.write(optim::read_training_state(source), source, spec_of(ckpt::Format::TorchDist, 1),
               "dist");
  const auto dist = folder.open("dist");
  const auto state = optim::read_training_state(dist);
  const auto error = test::error_of(
      [&] { optim::make_layer_wise_target(state, spec_of(ckpt::Format::Torch, 1)); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(contains(error->where().key, "mlp.own.weight"), error->what());
  BOOST_TEST(contains(error->hint(), "--model-rules"));
  const auto options = folder.with_rules("rows.json");
  folder.write(optim::read_training_state(dist, options), dist, spec_of(ckpt::Format::Torch, 2),
               "torch");
  folder.require_values("torch", options);
}

BOOST_AUTO_TEST_CASE(a_file_of_rules_that_is_missing_or_wrong_is_refused_by_its_name) {
  const TemporaryFolder folder;
  const auto missing = test::error_of([&] { optim::read_model_rules(folder / "none.json"); });
  BOOST_REQUIRE(missing);
  BOOST_TEST((missing->code() == ckpt::ErrorCode::NotFound));
  BOOST_TEST(contains(missing->what(), "none.json"));
  test::write_file(folder / "wrong.json", rules_text("diagonal"));
  const auto wrong = test::error_of([&] { optim::read_model_rules(folder / "wrong.json"); });
  BOOST_REQUIRE(wrong);
  BOOST_TEST((wrong->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(contains(wrong->what(), "wrong.json"));
  BOOST_TEST(contains(wrong->problem(), "'diagonal'"));
}

BOOST_AUTO_TEST_SUITE_END()
