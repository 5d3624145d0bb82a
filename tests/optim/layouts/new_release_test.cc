// What a new release takes that files differently: a line in releases.cc. It is told by what it
// files, written as a target and named.
#include <boost/test/unit_test.hpp>

#include <training/run_facts.h>

#include "args/run_args.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"

namespace {

// The common state lies in the store, and LayerWise ranks own what AdamW steps, too.
constexpr optim::Release kNew = {"2027-02", "February 2027", {"0.20"}, {}, false, false};

struct WithRelease {
  WithRelease() { optim::release_table().push_back(&kNew); }
  ~WithRelease() { optim::release_table().pop_back(); }
  test::TemporaryFolder folder;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(new_release, WithRelease)

BOOST_AUTO_TEST_CASE(it_is_written_told_from_the_others_and_read_again) {
  const auto source = optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) /
                                             "lw_muon_bf16_torch_dist_dp2" / "ckpt");
  const optim::FiledState state = optim::read_training_state(source);
  for (const optim::Release* const release : optim::releases()) {
    BOOST_TEST_CONTEXT(release->title) {
      optim::LayerWiseTargetSpec spec;
      spec.format = ckpt::Format::TorchDist;
      spec.form.release = release;
      const auto filed = test::file_state(state, source, spec, folder / std::string(release->name));
      const optim::FiledState read = optim::read_training_state(filed);
      BOOST_TEST(read.filed.release->name == release->name);
      BOOST_TEST(optim::run_facts(filed).release->title == release->title);
      BOOST_TEST(read.filed.has_by_elements() == release->distributes_adam);
      BOOST_TEST((filed.document("common.pt") != nullptr) == release->has_common_file);
      BOOST_TEST(optim::tensors_of(read).size() == optim::tensors_of(state).size());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
