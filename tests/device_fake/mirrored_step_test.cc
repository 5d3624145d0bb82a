// Steps whose symmetric products our own kernel computes: the twins' bits, and what is called when.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>

#include "optim/device/host_step.h"
#include "plans.h"

namespace {

using fake_cuda::names_of;
using plans::FakeStep;

int64_t count(const std::vector<fake_cuda::Call>& calls, const std::string& name) {
  return std::ranges::count(names_of(calls), name);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mirrored_steps)

BOOST_FIXTURE_TEST_CASE(steps_have_the_bits_of_the_twins_recorded_or_not, plans::Executing) {
  const plans::SlowMemory slow;
  for (const bool records : {false, true}) {
    const auto model = plans::mirrored_model(), expected = plans::mirrored_model();
    FakeStep step(model->plan);
    if (records) step.capture();
    BOOST_TEST(fake_cuda::loaded_in_captures().empty());
    optim::HostStep twin(expected->plan);
    for (int i = 0; i < 2; ++i) {
      fake_cuda::reset();
      step.take(model->rates(0.01));
      // Two shapes, two iterations, two products; the third shape is cuBLASLt's.
      BOOST_TEST(count(fake_cuda::work(), "mirrored_kernel") == 2 * 2 * 2);
      BOOST_TEST(count(fake_cuda::work(), "cublasLtMatmul") == 2 * 2 + 2 * 3);
      twin.set_rates(expected->rates(0.01), nullptr);
      twin.set_control({}, nullptr);
      twin.queue_stats(nullptr);
      twin.queue_update(0, nullptr);
      BOOST_TEST((model->contents() == expected->contents()));
    }
    BOOST_TEST(step.status == 0);
  }
}

BOOST_FIXTURE_TEST_CASE(maps_are_made_when_memory_is_bound_and_never_in_a_step, plans::Fresh) {
  const plans::SlowMemory slow;
  const auto model = plans::mirrored_model();
  FakeStep step(model->plan);
  BOOST_TEST(step.status == 0);
  // Of two shapes: two iterates and a gram.
  BOOST_TEST(count(fake_cuda::calls(), "cuTensorMapEncodeTiled") == 2 * 3);
  fake_cuda::reset();
  step.take(model->rates(0.01));
  const std::set<std::string> queued = {
      "cudaMemsetAsync", "chunk_stats",    "tensor_stats",       "cudaStreamIsCapturing",
      "cudaEventRecord", "cublasLtMatmul", "cudaStreamWaitEvent"};
  for (const std::string& name : names_of(fake_cuda::calls())) {
    BOOST_TEST((queued.contains(name) || name.ends_with("_kernel")), name);
  }
}

BOOST_FIXTURE_TEST_CASE(without_the_setting_cublaslt_computes_all, plans::Fresh) {
  const plans::SlowMemory slow;
  const auto model = plans::mirrored_model();
  model->plan.groups[0].muon.mirrored_products = false;
  FakeStep step(model->plan);
  step.take(model->rates(0.01));
  BOOST_TEST(step.status == 0);
  BOOST_TEST(count(fake_cuda::work(), "mirrored_kernel") == 0);
  BOOST_TEST(count(fake_cuda::calls(), "cudaGetDriverEntryPointByVersion") == 0);
}

// What one group allows, another's matrices are not given to.
BOOST_FIXTURE_TEST_CASE(groups_that_differ_in_the_setting_are_batches_of_their_own, plans::Fresh) {
  const plans::SlowMemory slow;
  plans::Model model;
  for (const bool allowed : {false, true}) {
    const uint32_t group = model.add_group(plans::RuleKind::Muon, plans::kBF16);
    model.plan.groups[group].muon.mirrored_products = allowed;
    model.add(group, 136, 72, plans::kMomentum);
  }
  FakeStep step(model.plan);
  fake_cuda::reset();
  step.take(model.rates(0.01));
  BOOST_TEST(count(fake_cuda::work(), "apply_kernel") == 2);
  BOOST_TEST(count(fake_cuda::work(), "mirrored_kernel") == 2 * 2);
}

BOOST_AUTO_TEST_SUITE_END()
