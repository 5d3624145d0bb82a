// Every call of cudart and cuBLASLt that a step makes fails once.
#include <boost/test/data/test_case.hpp>
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

// What is said of the call that failed: the last one but for those that destroy.
std::string text_of_failure() {
  std::string failed;
  for (const std::string& name : names_of(fake_cuda::calls())) {
    if (!name.ends_with("Destroy")) failed = name;
  }
  if (failed == "cublasLtCreate") return "initialization error";
  return failed == "cuTensorMapEncodeTiled" ? "invalid argument" : "out of memory";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_faults)

BOOST_DATA_TEST_CASE(every_call_may_fail_and_nothing_leaks,
                     boost::unit_test::data::make({"all", "mirrored"})) {
  fake_cuda::set_executes(false);
  const std::string name = sample;
  const auto model = name == "all" ? plans::whole_model() : plans::mirrored_model();
  model->plan.part_count = 2;
  model->plan.params[0].part = model->plan.params.back().part = 1;
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
        BOOST_TEST(failed.text == text_of_failure());
        BOOST_TEST(fake_cuda::alive() == 0);
        BOOST_TEST(cudaPeekAtLastError() == cudaSuccess);
        BOOST_TEST(std::equal(failed.work.begin(), failed.work.end(), whole.work.begin()));
        fake_cuda::reset();
        const Life again = live(*model, moved, records);
        BOOST_TEST(again.status == 0);
        BOOST_TEST((again.work == whole.work));
      }
    }
    BOOST_TEST(fallible > (name == "all" ? 150U : 80U));
  }
}

BOOST_AUTO_TEST_SUITE_END()
