// What modules keep is read on another thread, and is the same as read one by one.
#include <boost/test/unit_test.hpp>
#include <fstream>

#include <training/opened_training.h>

#include "layouts/parts/stacked_layers.h"
#include "layouts/torch_dist/store_objects.h"
#include "state/value_compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace {

optim::OpenedTraining open(const std::filesystem::path& folder) {
  return optim::open_checkpoint(folder);
}

std::vector<size_t> extra_states_of(const ckpt::Catalog& catalog) {
  std::vector<size_t> found;
  for (size_t i = 0; i < catalog.objects.size(); ++i) {
    const auto shard = optim::parse_object_key(catalog.objects[i].key);
    if (shard && optim::is_extra_state(shard->key)) found.push_back(i);
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(extra_states_ahead)

BOOST_AUTO_TEST_CASE(each_object_is_what_the_checkpoint_reads) {
  const optim::OpenedTraining source = open(test::golden("lw_muon_bf16_torch_dist_dp2/ckpt"));
  const auto objects = extra_states_of(source.catalog());
  BOOST_REQUIRE(objects.size() > 4);
  optim::ExtraStatesAhead ahead(source, source.catalog());
  for (auto i = objects.rbegin(); i != objects.rend(); ++i) {
    const ckpt::Document one = source.read_object(source.catalog().objects[*i]);
    BOOST_TEST(!optim::first_difference(ahead.take(*i).tree.root(), one.tree.root()));
  }
}

BOOST_AUTO_TEST_CASE(who_wants_none_waits_for_none) {
  const optim::OpenedTraining source = open(test::golden("lw_muon_bf16_torch_dist_dp2/ckpt"));
  for (int i = 0; i < 50; ++i) optim::ExtraStatesAhead ahead(source, source.catalog());
}

BOOST_AUTO_TEST_CASE(one_that_cannot_be_read_is_refused_when_it_is_taken) {
  const test::TemporaryFolder folder;
  std::filesystem::copy(test::golden("lw_muon_bf16_torch_dist_dp2/ckpt"), folder.path() / "copy",
                        std::filesystem::copy_options::recursive);
  const optim::OpenedTraining intact = open(folder.path() / "copy");
  const auto objects = extra_states_of(intact.catalog());
  const ckpt::ObjectEntry& broken = intact.catalog().objects[objects[1]];
  {
    const std::string& path = intact.catalog().files[broken.region->file].path;
    std::fstream file(intact.folder() / path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(broken.region->bytes.end_bytes() - 22));
    file.put('Q');  // of the end record's signature
  }
  const optim::OpenedTraining source = open(folder.path() / "copy");
  optim::ExtraStatesAhead ahead(source, source.catalog());
  BOOST_CHECK_NO_THROW(ahead.take(objects[0]));
  const auto error = test::error_of([&] { ahead.take(objects[1]); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(error->where().key == broken.key);
  BOOST_CHECK_NO_THROW(ahead.take(objects[2]));
}

BOOST_AUTO_TEST_SUITE_END()
