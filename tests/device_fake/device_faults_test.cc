// Every call of cudart and cuBLASLt that a step makes fails once.
#include <boost/test/unit_test.hpp>

#include "plans.h"

namespace {

using plans::FakeStep;

struct Life {
  kernels::DeviceStatus status = 0;
  std::string text;
  std::vector<std::string> work;
};

// Everything that is done with a step, to the first thing that fails.
Life live(const plans::Model& model, const std::vector<const void*>& moved, bool records) {
  FakeStep step(model.plan);
  if (records) step.capture();
  step.take(model.rates(0.01));
  step.take(model.rates(0.02), {.max_norm = 1}, moved);
  return {step.status, step.text(), names_of(fake_cuda::work())};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_faults)

BOOST_AUTO_TEST_CASE(every_call_may_fail_and_nothing_leaks) {
  fake_cuda::set_executes(false);
  const auto model = plans::whole_model();
  model->plan.part_count = 2;
  model->plan.params[0].part = model->plan.params[5].part = 1;
  const std::vector<const void*> moved = model->moved_grads();
  for (const bool records : {false, true}) {
    fake_cuda::reset();
    const Life whole = live(*model, moved, records);
    BOOST_REQUIRE(whole.status == 0);
    uint64_t fallible = 0;
    for (bool has_failed = true; has_failed; ++fallible) {
      fake_cuda::reset();
      fake_cuda::fail_at(fallible);
      const Life failed = live(*model, moved, records);
      has_failed = fake_cuda::has_failed();
      if (!has_failed) break;
      BOOST_TEST_CONTEXT("call " << fallible << ", " << fake_cuda::calls().back().name) {
        const bool is_handle = fake_cuda::calls().back().name == "cublasLtCreate";
        BOOST_TEST(failed.text == (is_handle ? "initialization error" : "out of memory"));
        BOOST_TEST(fake_cuda::alive() == 0);
        BOOST_TEST(cudaPeekAtLastError() == cudaSuccess);
        BOOST_TEST(std::equal(failed.work.begin(), failed.work.end(), whole.work.begin()));
        fake_cuda::reset();
        const Life again = live(*model, moved, records);
        BOOST_TEST(again.status == 0);
        BOOST_TEST((again.work == whole.work));
      }
    }
    BOOST_TEST(fallible > 150U);
  }
}

BOOST_AUTO_TEST_SUITE_END()
